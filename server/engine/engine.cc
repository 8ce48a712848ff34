#include "server/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention/kv_pool.h"
#include "kernels/decode/search.h"
#include "kernels/ops/ops.h"
#include "kernels/transformer/transformer.h"

namespace koine::server {

using kernels::BlockList;
using kernels::RowRun;
using kernels::Segment;
using model_loader::Adapter;
using model_loader::Language;

namespace {

const kernels::AdapterWeights* WeightsOf(const Adapter* adapter) {
  return adapter == nullptr ? nullptr : &adapter->weights();
}

// Blocks of a worker's pool that its memory bound allows; none for models that do not decode.
int32_t PoolBlocks(const model_loader::Model& model, const EngineOptions& options) {
  const kernels::KvShape shape = model.transformer().kv_shape();
  if (shape.layers == 0) return 0;
  const int64_t block_bytes = shape.block_floats() * static_cast<int64_t>(sizeof(float));
  return static_cast<int32_t>(std::clamp<int64_t>(options.kv_cache_bytes / block_bytes, 1, int64_t{1} << 30));
}

void RaiseTo(std::atomic<int64_t>* maximum, int64_t value) {
  int64_t seen = maximum->load();
  while (seen < value && !maximum->compare_exchange_weak(seen, value)) {
  }
}

// Grow-only f32 rows; zeroed, since products read rounded row counts.
float* Grow(std::vector<float>* buffer, int64_t floats) {
  if (static_cast<int64_t>(buffer->size()) < floats) buffer->assign(static_cast<size_t>(floats), 0.0F);
  return buffer->data();
}

}  // namespace

// One engine thread: its caches, its buffers and the sentences it is decoding.
class Engine::Worker {
 public:
  Worker(Engine* engine, int index)
      : engine_(*engine),
        model_(*engine->model_),
        index_(index),
        workspace_(engine->options_.threads),
        pool_(model_.transformer().kv_shape(), PoolBlocks(model_, engine->options_)),
        unreserved_(pool_.capacity()) {
    workspace_.set_profiling(engine->trace_ != nullptr);
  }

  void Run() {
    while (true) {
      if (engine_.abort_.load()) {
        EndAll(absl::UnavailableError("the server is shutting down"));
        engine_.queue_->Abort(absl::UnavailableError("the server is shutting down"));
        return;
      }
      DropGone();
      const std::vector<JobPtr> jobs = Admission();
      if (!jobs.empty()) {
        Guard([&] { Admit(jobs); }, jobs);
      } else if (live_.empty()) {
        if (engine_.queue_->finished()) return;
        continue;
      }
      if (!live_.empty()) {
        std::vector<JobPtr> stepping;
        for (const auto& sentence : live_) stepping.push_back(sentence->job);
        Guard([&] { Step(); }, stepping);
      }
    }
  }

 private:
  struct Sentence {
    JobPtr job;
    kernels::Search search;
    BlockList cross;
    std::vector<BlockList> beams;  // one per live row
    std::vector<int32_t> tokens;   // what each live row feeds next
    int64_t reserved = 0;          // blocks set aside for the worst case
    absl::Time started;
  };

  // Runs `work`; an exception (out of memory, a primitive that cannot be made) ends these jobs and nothing else.
  template <typename Work>
  void Guard(const Work& work, const std::vector<JobPtr>& jobs) {
    try {
      work();
    } catch (const std::exception& error) {
      const absl::Status status = absl::InternalError(absl::StrCat("the forward pass failed: ", error.what()));
      std::vector<JobPtr> unfinished;
      for (const JobPtr& job : jobs) {
        if (ended_.count(job.get()) == 0) unfinished.push_back(job);
      }
      for (const auto& sentence : live_) {
        if (std::find(jobs.begin(), jobs.end(), sentence->job) != jobs.end()) Release(sentence.get());
      }
      live_.erase(
          std::remove_if(live_.begin(), live_.end(),
                         [&](const auto& s) { return std::find(jobs.begin(), jobs.end(), s->job) != jobs.end(); }),
          live_.end());
      for (const JobPtr& job : unfinished) {
        ++engine_.counters_.failed;
        End(job, Failure(*job, absl::Now(), status));
      }
    }
    ended_.clear();
    sentence_ok_.clear();
  }

  static JobResult Failure(const Job& job, absl::Time started, absl::Status status) {
    JobResult result;
    result.status = std::move(status);
    result.queued = started - job.enqueued;
    result.computed = absl::Now() - started;
    return result;
  }

  void End(const JobPtr& job, JobResult result) {
    ended_.insert(job.get());
    --engine_.live_jobs_;
    job->done(std::move(result));
  }

  void Release(Sentence* sentence) {
    for (BlockList& beam : sentence->beams) pool_.Release(&beam);
    sentence->beams.clear();
    pool_.Release(&sentence->cross);
    unreserved_ += sentence->reserved;
    sentence->reserved = 0;
  }

  void EndAll(const absl::Status& status) {
    for (const auto& sentence : live_) {
      Release(sentence.get());
      ++engine_.counters_.cancelled;
      End(sentence->job, Failure(*sentence->job, sentence->started, status));
    }
    live_.clear();
    ended_.clear();
  }

  // Nobody waits for these any more: leave the batch before the next step.
  void DropGone() {
    const absl::Time now = absl::Now();
    for (size_t i = 0; i < live_.size();) {
      Sentence& sentence = *live_[i];
      absl::Status status;
      if (sentence.job->cancelled.load()) {
        status = absl::CancelledError("cancelled while decoding");
        ++engine_.counters_.cancelled;
      } else if (sentence.job->deadline <= now) {
        status = absl::DeadlineExceededError("the deadline passed while decoding");
        ++engine_.counters_.expired;
      } else {
        ++i;
        continue;
      }
      Release(&sentence);
      End(sentence.job, Failure(*sentence.job, sentence.started, status));
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    ended_.clear();
  }

  std::vector<JobPtr> Admission() {
    Room room;
    int64_t rows = 0;
    std::vector<const Language*> languages;
    for (const auto& sentence : live_) {
      // A sentence may widen to its whole beam.
      rows += sentence->job->rows();
      const Language* target = sentence->job->target.get();
      if (languages.empty() || languages.back() != target) languages.push_back(target);
    }
    room.rows = std::max<int64_t>(engine_.options_.max_rows - rows, 0);
    room.tokens = engine_.options_.max_tokens;
    room.blocks = unreserved_;
    room.idle = live_.empty();
    room.workers = engine_.options_.workers;
    std::vector<JobPtr> jobs =
        engine_.queue_->Take(room, languages, live_.empty() ? absl::Milliseconds(100) : absl::ZeroDuration());
    engine_.live_jobs_ += static_cast<int64_t>(jobs.size());
    return jobs;
  }

  // Encodes all new sentences as one batch of packed rows; answers the encode jobs, starts decoding the others.
  void Admit(std::vector<JobPtr> jobs) {
    const absl::Time started = absl::Now();
    // Translations first (they then form a prefix of the rows); rows of one language together; and, within a source
    // language, targets together, so that what a target owns in cross-attention runs over few pieces.
    std::stable_sort(jobs.begin(), jobs.end(), [](const JobPtr& a, const JobPtr& b) {
      return std::make_tuple(a->task, a->source.get(), a->source_adapter, a->target.get(), a->target_adapter) <
             std::make_tuple(b->task, b->source.get(), b->source_adapter, b->target.get(), b->target_adapter);
    });
    std::vector<int32_t> ids;
    std::vector<Segment> segments;
    std::vector<RowRun> runs;
    std::vector<RowRun> target_runs;
    std::set<const Language*> languages;
    size_t translations = 0;
    for (const JobPtr& job : jobs) {
      const int64_t begin = static_cast<int64_t>(ids.size());
      ids.insert(ids.end(), job->source_ids.begin(), job->source_ids.end());
      const int64_t end = static_cast<int64_t>(ids.size());
      segments.push_back({begin, end});
      AppendRun(&runs, {&job->source->weights(), WeightsOf(job->source_adapter), begin, end});
      languages.insert(job->source.get());
      if (job->task == Job::Task::kTranslate) {
        AppendRun(&target_runs, {&job->target->weights(), WeightsOf(job->target_adapter), begin, end});
        ++translations;
      }
    }
    const int64_t rows = static_cast<int64_t>(ids.size());
    const int64_t d = model_.transformer().config().d_model;
    float* encoded = Grow(&encoded_, kernels::RowCapacity(rows) * d);
    model_.transformer().Encode(workspace_, ids, segments, runs, encoded);
    engine_.counters_.encoded_tokens += rows;
    pending_trace_.encoded_tokens += rows;
    pending_trace_.encoded_languages = static_cast<int64_t>(languages.size());

    std::vector<BlockList*> memories;
    const size_t first = live_.size();
    for (size_t i = 0; i < translations; ++i) {
      auto sentence = std::make_unique<Sentence>(
          Sentence{jobs[i],
                   kernels::Search(SearchOf(*jobs[i]), jobs[i]->target->weights().vocabulary),
                   BlockList(),
                   {},
                   {},
                   KvBlocksFor(*jobs[i]),
                   started});
      sentence->beams.emplace_back();
      sentence->tokens.push_back(jobs[i]->start_token);
      unreserved_ -= sentence->reserved;
      pool_.Reserve(&sentence->cross, jobs[i]->tokens());  // cannot fail: the blocks were set aside
      live_.push_back(std::move(sentence));
    }
    for (size_t i = first; i < live_.size(); ++i) memories.push_back(&live_[i]->cross);
    model_.transformer().FillCrossMemory(workspace_, encoded, absl::MakeConstSpan(segments).subspan(0, translations),
                                         target_runs, memories, pool_);
    for (size_t i = translations; i < jobs.size(); ++i) AnswerEncode(jobs[i], segments[i], encoded, started);
    SortLive();
  }

  static void AppendRun(std::vector<RowRun>* runs, const RowRun& run) {
    if (!runs->empty() && runs->back().language == run.language && runs->back().adapter == run.adapter) {
      runs->back().end = run.end;
    } else {
      runs->push_back(run);
    }
  }

  static kernels::SearchOptions SearchOf(const Job& job) {
    kernels::SearchOptions options = job.search;
    // Rows without a piece could not be turned into text.
    const int64_t vocabulary = job.target->weights().vocabulary;
    for (int64_t id = vocabulary - job.target->unusable_rows(); id < vocabulary; ++id) {
      options.suppressed.push_back(static_cast<int32_t>(id));
    }
    return options;
  }

  void AnswerEncode(const JobPtr& job, const Segment& segment, const float* encoded, absl::Time started) {
    const int64_t d = model_.transformer().config().d_model;
    const float* rows = encoded + segment.begin * d;
    const int64_t tokens = segment.end - segment.begin;
    JobResult result;
    result.embedding.resize(static_cast<size_t>(model_.config().embedding_size()));
    model_.Pool(workspace_, rows, tokens, job->normalize, result.embedding.data());
    if (!kernels::AllFinite(result.embedding.data(), model_.config().embedding_size())) {
      ++engine_.counters_.failed;
      End(job, Failure(*job, started, absl::InternalError("the encoder's output is not finite")));
      return;
    }
    if (job->token_states) result.token_states.assign(rows, rows + tokens * d);
    result.queued = started - job->enqueued;
    result.computed = absl::Now() - started;
    ++engine_.counters_.finished;
    End(job, std::move(result));
  }

  // Rows of one target language lie together, and of one adapter within it.
  void SortLive() {
    std::stable_sort(live_.begin(), live_.end(), [](const auto& a, const auto& b) {
      return std::make_pair(a->job->target.get(), a->job->target_adapter) <
             std::make_pair(b->job->target.get(), b->job->target_adapter);
    });
  }

  void Step() {
    const absl::Time started = absl::Now();
    const double product_seconds = workspace_.matmul().counts().seconds;
    const int64_t multiply_adds = workspace_.matmul().counts().multiply_adds;
    const kernels::Transformer& transformer = model_.transformer();
    const int64_t d = transformer.config().d_model;
    const int64_t partial_copies = pool_.partial_copies();
    const int64_t full_copies = pool_.full_copies();
    std::vector<kernels::DecodeRow> rows;
    std::vector<RowRun> runs;
    for (const auto& sentence : live_) {
      const int64_t begin = static_cast<int64_t>(rows.size());
      for (size_t b = 0; b < sentence->beams.size(); ++b) {
        pool_.Extend(&sentence->beams[b]);  // cannot fail: set aside at admission
        rows.push_back({sentence->tokens[b], &sentence->beams[b], &sentence->cross});
      }
      AppendRun(&runs, {&sentence->job->target->weights(), WeightsOf(sentence->job->target_adapter), begin,
                        static_cast<int64_t>(rows.size())});
    }
    const int64_t count = static_cast<int64_t>(rows.size());
    float* hidden = Grow(&hidden_, kernels::RowCapacity(count) * d);
    transformer.DecodeStep(workspace_, rows, runs, pool_, hidden);
    const kernels::ForwardTrace forward = workspace_.trace();

    StepTrace trace = std::exchange(pending_trace_, StepTrace());
    trace.worker = index_;
    trace.rows = count;
    trace.sentences = static_cast<int64_t>(live_.size());
    trace.shared_products = forward.shared_products;
    trace.language_products = forward.language_products;
    int64_t row = 0;
    for (size_t begin = 0; begin < live_.size();) {
      const Language* language = live_[begin]->job->target.get();
      size_t end = begin;
      while (end < live_.size() && live_[end]->job->target.get() == language) ++end;
      row = Choose(begin, end, row, hidden, &trace);
      ++trace.languages;
      begin = end;
    }
    Retire();

    EngineCounters& counters = engine_.counters_;
    ++counters.steps;
    counters.step_rows += count;
    counters.step_languages += trace.languages;
    RaiseTo(&counters.max_step_rows, count);
    RaiseTo(&counters.max_step_languages, trace.languages);
    counters.table_bytes += trace.table_bytes;
    counters.partial_block_copies += pool_.partial_copies() - partial_copies;
    counters.full_block_copies += pool_.full_copies() - full_copies;
    counters.multiply_adds += workspace_.matmul().counts().multiply_adds - multiply_adds;
    trace.seconds = absl::ToDoubleSeconds(absl::Now() - started);
    trace.product_seconds = workspace_.matmul().counts().seconds - product_seconds;
    if (engine_.trace_ != nullptr) engine_.trace_(trace);
  }

  // Logits and choices of sentences [begin, end), all of one target language; `row` is their first row. Returns the row
  // after them. Large tables go in pieces, so that the logits stay within a fixed space.
  int64_t Choose(size_t begin, size_t end, int64_t row, const float* hidden, StepTrace* trace) {
    constexpr int64_t kLogitsBytes = 64 << 20;  // 65 rows of NLLB's 256,206, or 2,000 of an 8,000-row table
    const kernels::LanguageWeights& language = live_[begin]->job->target->weights();
    const int64_t vocabulary = language.vocabulary;
    const int64_t piece = std::max<int64_t>(1, kLogitsBytes / static_cast<int64_t>(sizeof(float)) / vocabulary);
    const int64_t d = model_.transformer().config().d_model;
    while (begin < end) {
      size_t last = begin;
      int64_t rows = 0;
      while (last < end && (rows == 0 || rows + live_[last]->search.live_rows() <= piece)) {
        rows += live_[last++]->search.live_rows();
      }
      float* logits = Grow(&logits_, kernels::RoundedRows(rows) * vocabulary);
      model_.transformer().Logits(workspace_, language, hidden + row * d, rows, logits);
      trace->table_bytes += static_cast<int64_t>(language.output.weight.bytes());
      ++trace->language_products;
      for (; begin < last; ++begin) {
        Sentence& sentence = *live_[begin];
        const int64_t own_rows = sentence.search.live_rows();
        sentence_ok_.push_back(sentence.search.Advance(logits));
        engine_.counters_.generated_tokens += own_rows;
        logits += own_rows * vocabulary;
        row += own_rows;
        if (!sentence.search.done()) Reorder(&sentence);
      }
    }
    return row;
  }

  // Beams follow their parents: block lists are forked and released, no block is copied here.
  void Reorder(Sentence* sentence) {
    const auto continuations = sentence->search.continuations();
    if (continuations.size() == 1 && sentence->beams.size() == 1) {
      sentence->tokens[0] = continuations[0].token;
      return;
    }
    std::vector<BlockList> beams;
    std::vector<int32_t> tokens;
    for (const kernels::Continuation& next : continuations) {
      beams.push_back(pool_.Fork(sentence->beams[static_cast<size_t>(next.parent)]));
      tokens.push_back(next.token);
    }
    for (BlockList& old : sentence->beams) pool_.Release(&old);
    sentence->beams = std::move(beams);
    sentence->tokens = std::move(tokens);
  }

  void Retire() {
    std::vector<std::unique_ptr<Sentence>> kept;
    for (size_t i = 0; i < live_.size(); ++i) {
      Sentence& sentence = *live_[i];
      if (!sentence.search.done()) {
        kept.push_back(std::move(live_[i]));
        continue;
      }
      Release(&sentence);
      if (!sentence_ok_[i]) {
        ++engine_.counters_.failed;
        End(sentence.job, Failure(*sentence.job, sentence.started, absl::InternalError("the logits are not finite")));
        continue;
      }
      JobResult result;
      result.hypotheses = sentence.search.Best();
      result.queued = sentence.started - sentence.job->enqueued;
      result.computed = absl::Now() - sentence.started;
      ++engine_.counters_.finished;
      End(sentence.job, std::move(result));
    }
    live_ = std::move(kept);
    sentence_ok_.clear();
  }

  Engine& engine_;
  const model_loader::Model& model_;
  const int index_;
  kernels::Workspace workspace_;
  kernels::KvPool pool_;
  int64_t unreserved_;                           // blocks that no live sentence may need
  std::vector<std::unique_ptr<Sentence>> live_;  // ordered by target language and adapter
  std::vector<bool> sentence_ok_;                // of this step, in the order of live_
  std::set<const Job*> ended_;                   // of this admission or step
  std::vector<float> encoded_, hidden_, logits_;
  StepTrace pending_trace_;
};

Engine::Engine(std::shared_ptr<const model_loader::Model> model, JobQueue* queue, const EngineOptions& options,
               std::function<void(const StepTrace&)> trace)
    : model_(std::move(model)), queue_(queue), options_(options), trace_(std::move(trace)) {}

Engine::~Engine() { Stop(absl::Now()); }

void Engine::Start() {
  running_.store(options_.workers);
  for (int i = 0; i < options_.workers; ++i) workers_.emplace_back([this, i] { RunWorker(i); });
}

void Engine::RunWorker(int index) {
  Worker(this, index).Run();
  --running_;
}

void Engine::Stop(absl::Time deadline) {
  queue_->Drain();
  while (running_.load() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  abort_.store(true);
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

absl::Status Engine::CheckFits(const Job& job) const {
  const int64_t blocks = PoolBlocks(*model_, options_);
  if (KvBlocksFor(job) > blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this text needs ", KvBlocksFor(job), " blocks of key and value cache (", job.tokens(), " source tokens, ",
        job.search.beam_size, " beams of up to ", job.search.max_tokens, " tokens), the server has ", blocks));
  }
  return absl::OkStatus();
}

}  // namespace koine::server
