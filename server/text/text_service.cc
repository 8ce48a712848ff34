#include "server/text/text_service.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "model_loader/model/prompts.h"
#include "server/text/options.h"
#include "server/text/utf8.h"

namespace koine::server {
namespace {

using model_loader::Adapter;
using model_loader::Language;
using model_loader::Model;
using model_loader::SourcePrompt;
using model_loader::TargetPrompt;

// One task of a text worker tokenises this much before others get their turn: about 20 ms at 4 MB/s.
constexpr int64_t kSliceItems = 64;
constexpr int64_t kSliceBytes = 64 << 10;

// Codes and aliases are short; near ones are not searched for anything longer.
constexpr size_t kMaxCodeBytes = 64;

// The canonical code of what a request calls a language; loads nothing.
absl::StatusOr<std::string> FindLanguage(const LanguageStore& languages, const std::string& name, std::string field) {
  if (name.size() > kMaxCodeBytes) {
    return InvalidField(std::move(field),
                        absl::StrCat("\"", ForMessage(name, kMaxCodeBytes), "\" is no language code"));
  }
  absl::StatusOr<std::string> code = languages.Find(name);
  if (!code.ok()) return WithField(code.status(), std::move(field));
  return code;
}

absl::StatusOr<const Adapter*> FindAdapter(const Language& language, const std::string& name) {
  if (name.empty()) return language.default_adapter();
  if (name == "none") return nullptr;
  return language.FindAdapter(name);
}

// The same answer from the list of adapters, without loading the language.
absl::Status CheckAdapter(const LanguageStore& languages, const std::string& code, const std::string& name) {
  if (code.empty() || name.empty() || name == "none") return absl::OkStatus();
  for (const LanguageInfo& info : languages.List()) {
    if (info.code != code) continue;
    const std::vector<std::string>& known = info.plan.adapters;
    if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("language ", code, " has no adapter \"", ForMessage(name, kMaxCodeBytes), "\""));
}

absl::Status MissingLanguage(std::string field) {
  return InvalidField(std::move(field), "is missing: name a language here or in the item");
}

// A language and adapter that a request names for all items.
struct LanguageChoice {
  const char* role = "";  // the field that names the language
  std::string code;       // canonical; empty if the request names none
  std::string adapter;
  int place = -1;  // among the call's languages
};

// What the model reads for one item.
struct SourceTokens {
  std::vector<int32_t> ids;  // empty: the text has nothing to read
  int64_t unknown = 0;
  bool truncated = false;
};

// `ids` as the caller gave them.
absl::StatusOr<SourceTokens> CheckIds(const google::protobuf::RepeatedField<int32_t>& ids, const Language& language,
                                      int64_t max_positions, std::string field) {
  SourceTokens tokens;
  if (ids.size() > max_positions) {
    return InvalidField(std::move(field),
                        absl::StrCat("has ", ids.size(), " tokens, the model reads at most ", max_positions));
  }
  const int64_t vocabulary = language.weights().vocabulary;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary) {
      return InvalidField(std::move(field), absl::StrCat(id, " is not in the vocabulary of ", language.code(), ", ",
                                                         vocabulary, " pieces"));
    }
  }
  tokens.ids.assign(ids.begin(), ids.end());
  tokens.unknown = std::count(tokens.ids.begin(), tokens.ids.end(), language.tokenizer().unknown_id());
  return tokens;
}

// `before` is the model's own text, which goes before the caller's. REQUIRES valid UTF-8.
absl::StatusOr<SourceTokens> Tokenize(const std::string& before, const std::string& text, const Language& language,
                                      const SourcePrompt& prompt, int64_t max_positions, int64_t max_characters,
                                      bool truncate, std::string field) {
  const int64_t characters = CountCodePoints(text).value_or(0);
  if (characters > max_characters) {
    return InvalidField(std::move(field),
                        absl::StrCat("has ", characters, " characters, the limit is ", max_characters));
  }
  absl::StatusOr<model_loader::Encoded> encoded =
      before.empty() ? language.tokenizer().Encode(text) : language.tokenizer().Encode(absl::StrCat(before, text));
  if (!encoded.ok()) return encoded.status();
  SourceTokens tokens;
  if (encoded->ids.empty()) return tokens;
  const int64_t length = static_cast<int64_t>(encoded->ids.size()) + prompt.size();
  if (length > max_positions) {
    if (!truncate || prompt.size() >= max_positions) {
      return InvalidField(std::move(field), absl::StrCat("has ", length, " tokens, the model reads at most ",
                                                         max_positions, "; the option truncate has it cut"));
    }
    encoded->ids.resize(static_cast<size_t>(max_positions - prompt.size()));
    tokens.truncated = true;
  }
  // Pieces that were cut are not unknown to the model, they are not there.
  tokens.unknown = std::count(encoded->ids.begin(), encoded->ids.end(), language.tokenizer().unknown_id());
  tokens.ids.reserve(encoded->ids.size() + static_cast<size_t>(prompt.size()));
  tokens.ids = prompt.before;
  tokens.ids.insert(tokens.ids.end(), encoded->ids.begin(), encoded->ids.end());
  tokens.ids.insert(tokens.ids.end(), prompt.after.begin(), prompt.after.end());
  return tokens;
}

v1::FinishReason FinishReasonOf(kernels::FinishReason reason) {
  return reason == kernels::FinishReason::kStop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
}

// The slowest of each stage.
void RaiseTo(const v1::Timings& item, v1::Timings* all) {
  all->set_tokenize_seconds(std::max(all->tokenize_seconds(), item.tokenize_seconds()));
  all->set_queue_seconds(std::max(all->queue_seconds(), item.queue_seconds()));
  all->set_compute_seconds(std::max(all->compute_seconds(), item.compute_seconds()));
}

// The totals of the items that have an answer, and the call's own.
template <typename Response>
void SetTotals(double seconds, Response& response) {
  for (auto& result : *response.mutable_results()) {
    if (result.has_status()) continue;
    result.mutable_timings()->set_total_seconds(seconds);
    RaiseTo(result.timings(), response.mutable_timings());
  }
  response.mutable_timings()->set_total_seconds(seconds);
}

void SetEngineTimes(const JobResult& job, v1::Timings* timings) {
  timings->set_queue_seconds(absl::ToDoubleSeconds(job.queued));
  timings->set_compute_seconds(absl::ToDoubleSeconds(job.computed));
}

template <typename Result>
void DescribeSource(const SourceTokens& tokens, size_t length, Result& result) {
  result.set_truncated(tokens.truncated);
  result.set_input_tokens(static_cast<int32_t>(length));
  result.set_unknown_pieces(static_cast<int32_t>(tokens.unknown));
}

template <typename OneCall, typename Request, typename Done>
std::shared_ptr<Call> StartCall(TextService* service, std::unique_ptr<Request> request, absl::Time deadline,
                                Done done) {
  const int64_t items = request->items_size();
  const int64_t bytes = static_cast<int64_t>(request->ByteSizeLong());
  auto call = std::make_shared<OneCall>(service, deadline, std::move(request), std::move(done));
  call->Begin(items, bytes);
  return call;
}

// Faults that end the whole request and not one item: all its jobs share the call.
bool EndsCall(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace

// The way of every call. Steps run one after the other on whatever thread the one before ended on; only Cancel and the
// jobs' `done` may come at the same time.
class TextService::BatchCall : public Call, public std::enable_shared_from_this<BatchCall> {
 public:
  BatchCall(TextService* service, absl::Time deadline) : service_(*service), deadline_(deadline) {}

  void Begin(int64_t items, int64_t bytes) {
    absl::Status status = CheckSize(items);
    if (status.ok()) status = CheckRequest();
    if (status.ok()) status = TakePermit(items, bytes);
    if (status.ok()) status = CheckAlive();
    if (!status.ok()) return End(status);
    items_ = static_cast<int>(items);
    jobs_.resize(static_cast<size_t>(items));
    results_.resize(static_cast<size_t>(items));
    failed_.resize(static_cast<size_t>(items));
    if (items == 0) return End(CheckAdapters());
    service_.parts_.pool->Post([self = shared_from_this()] { self->ResolveSlice(0); });
  }

  void Cancel(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<JobPtr> jobs;
    uint64_t ticket = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (ended_ || !cancelled_.ok()) return;
      cancelled_ = status;
      jobs = submitted_;
      ticket = ticket_;
    }
    if (ticket != 0) service_.parts_.languages->Cancel(ticket, status);
    if (!jobs.empty()) service_.parts_.queue->Cancel(jobs, status);
  }

 protected:
  // Everything that concerns the request as a whole and needs no language in memory.
  virtual absl::Status CheckRequest() = 0;
  // Item `i`'s languages to places among the call's. An error is the item's status.
  virtual absl::Status Resolve(int i) = 0;
  // The adapters that the request names, once its languages are there; or, without items, from what is known of them.
  virtual absl::Status CheckAdapters() = 0;
  // Item `i` to a job; null if the item is answered without one. An error is the item's status.
  virtual absl::StatusOr<JobPtr> Prepare(int i) = 0;
  // After all items: OK if their reply can be sent. `tokens` is the sum over all jobs.
  virtual absl::Status CheckReply(int64_t jobs, int64_t tokens) = 0;
  virtual size_t ItemBytes(int i) const = 0;
  virtual void SetItemStatus(int i, const absl::Status& status) = 0;
  // Fills item i of the reply; an error becomes the item's status.
  virtual absl::Status Answer(int i, JobResult result) = 0;
  // Tokens read and generated for an answered item.
  virtual std::pair<int64_t, int64_t> Tokens(int i) const = 0;
  // The call's end. Exactly one of them, once.
  virtual void Reply() = 0;
  virtual void Fail(const absl::Status& status) = 0;
  virtual const char* op() const = 0;

  // Fills `choice` from the request's fields.
  absl::Status Choose(const std::string& name, const std::string& adapter, const char* role, LanguageChoice* choice) {
    choice->role = role;
    choice->adapter = adapter;
    if (name.empty() && service_.parts_.languages->has_languages()) return absl::OkStatus();
    absl::StatusOr<std::string> code = FindLanguage(*service_.parts_.languages, name, role);
    if (!code.ok()) return code.status();
    choice->code = *std::move(code);
    choice->place = Need(choice->code, true);
    return absl::OkStatus();
  }

  // The place of the language for one item, whose own name may be empty.
  absl::StatusOr<int> PlaceFor(const LanguageChoice& choice, const std::string& name, int item) {
    if (name.empty()) {
      if (choice.place < 0) return MissingLanguage(absl::StrCat("items[", item, "].", choice.role));
      return choice.place;
    }
    ++names_found_;
    absl::StatusOr<std::string> code =
        FindLanguage(*service_.parts_.languages, name, absl::StrCat("items[", item, "].", choice.role));
    if (!code.ok()) return code.status();
    return Need(*code, false);
  }

  const std::string& CodeAt(int place) const { return languages_[static_cast<size_t>(place)].code; }

  // The language at `place` and the adapter that an item, else the request, names. After the leases.
  absl::Status Use(int place, const LanguageChoice& choice, const std::string& adapter,
                   std::shared_ptr<const Language>* language, const Adapter** chosen) const {
    const Needed& needed = languages_[static_cast<size_t>(place)];
    if (!needed.failure.ok()) return needed.failure;
    absl::StatusOr<const Adapter*> found = FindAdapter(*needed.lease, adapter.empty() ? choice.adapter : adapter);
    if (!found.ok()) return found.status();
    *language = needed.lease;
    *chosen = *found;
    return absl::OkStatus();
  }

  // The request's own adapter name.
  absl::Status CheckAdapter(const LanguageChoice& choice) const {
    if (choice.place < 0) return absl::OkStatus();
    const Needed& needed = languages_[static_cast<size_t>(choice.place)];
    if (needed.lease == nullptr) {
      return server::CheckAdapter(*service_.parts_.languages, choice.code, choice.adapter);
    }
    return FindAdapter(*needed.lease, choice.adapter).status();
  }

  const Model& model() const { return service_.model(); }
  int64_t max_positions() const { return model().config().architecture.max_positions; }
  const RequestLimits& limits() const { return service_.options_.limits; }
  double Elapsed() const { return absl::ToDoubleSeconds(absl::Now() - arrival_); }

  TextService& service_;
  const absl::Time deadline_;
  const absl::Time arrival_ = absl::Now();

 private:
  absl::Status CheckSize(int64_t items) const {
    if (items <= limits().max_items) return absl::OkStatus();
    return InvalidField("items", absl::StrCat("has ", items, " items, the limit is ", limits().max_items));
  }

  // As long as the oldest has waited now, so long a place is likely to take.
  absl::Duration RetryAfter() const {
    return std::clamp(service_.parts_.queue->gauges().oldest, absl::Milliseconds(100), absl::Seconds(10));
  }

  absl::Status TakePermit(int64_t items, int64_t bytes) {
    absl::StatusOr<Permit> permit = service_.permits_.Take(items, bytes);
    if (!permit.ok()) return Overloaded(permit.status().message(), RetryAfter());
    permit_ = *std::move(permit);
    return absl::OkStatus();
  }

  absl::Status CheckAlive() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_.ok()) return cancelled_;
    if (absl::Now() >= deadline_) return absl::DeadlineExceededError("the deadline passed before the work began");
    return absl::OkStatus();
  }

  // A language that the call works with.
  struct Needed {
    std::string code;
    bool by_request = false;  // its fault is the request's, not an item's
    absl::Status failure;     // it cannot be had
    LanguageLease lease;
  };

  int Need(const std::string& code, bool by_request) {
    const auto [found, added] = places_.emplace(code, static_cast<int>(languages_.size()));
    if (added) languages_.push_back({code, by_request, absl::OkStatus(), nullptr});
    return found->second;
  }

  void ResolveSlice(int begin) {
    names_found_ = 0;
    int i = begin;
    for (; i < items_ && names_found_ < kSliceItems; ++i) {
      absl::Status alive = CheckAlive();
      if (!alive.ok()) return End(alive);
      const absl::Status resolved = Resolve(i);
      if (resolved.ok()) continue;
      failed_[static_cast<size_t>(i)] = true;
      FailItem(i, resolved);
    }
    if (i == items_) return AcquireLanguages();
    service_.parts_.pool->Post([self = shared_from_this(), i] { self->ResolveSlice(i); });
  }

  // What Acquire answers and what it returns may come in either order, on different threads: whoever comes second goes
  // on with the call, so that nothing of it runs at the same time.
  struct Leasing {
    std::atomic<int> missing{2};
    absl::StatusOr<std::vector<LanguageLease>> leases = absl::UnknownError("not yet");
  };

  void AcquireLanguages() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::string> codes;
    for (const Needed& needed : languages_) {
      if (needed.failure.ok()) codes.push_back(needed.code);
    }
    if (codes.empty()) return RunSlice(0);
    stage_ = Stage::kLanguage;
    auto leasing = std::make_shared<Leasing>();
    const uint64_t ticket = service_.parts_.languages->Acquire(
        std::move(codes), deadline_,
        [self = shared_from_this(), leasing](absl::StatusOr<std::vector<LanguageLease>> leases) {
          leasing->leases = std::move(leases);
          if (leasing->missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
          self->service_.parts_.pool->Post([self, leasing] { self->Leased(std::move(leasing->leases)); });
        });
    if (ticket != 0) {
      absl::Status cancelled;
      {
        absl::MutexLock lock(&mutex_);
        ticket_ = ticket;
        cancelled = cancelled_;
      }
      // It came before there was a ticket to cancel.
      if (!cancelled.ok()) service_.parts_.languages->Cancel(ticket, cancelled);
    }
    if (leasing->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) Leased(std::move(leasing->leases));
  }

  void Leased(absl::StatusOr<std::vector<LanguageLease>> leases) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      ticket_ = 0;
    }
    if (!leases.ok()) {
      absl::Status status = leases.status();
      const auto culprit = places_.find(TakeFailedLanguage(&status));
      if (EndsCall(status) || culprit == places_.end()) return End(status);
      Needed& needed = languages_[static_cast<size_t>(culprit->second)];
      if (needed.by_request || !needed.failure.ok()) return End(status);
      // Its items fail; the others need the rest. Nothing is held meanwhile, so that calls cannot block each other.
      needed.failure = std::move(status);
      service_.parts_.pool->Post([self = shared_from_this()] { self->AcquireLanguages(); });
      return;
    }
    auto lease = leases->begin();
    for (Needed& needed : languages_) {
      if (needed.failure.ok()) needed.lease = std::move(*lease++);
    }
    stage_ = Stage::kTokenize;
    const absl::Status adapters = CheckAdapters();
    if (!adapters.ok()) return End(adapters);
    RunSlice(0);
  }

  void RunSlice(int begin) {
    int64_t bytes = 0;
    int i = begin;
    for (; i < items_ && i - begin < kSliceItems && bytes < kSliceBytes; ++i) {
      if (failed_[static_cast<size_t>(i)]) continue;
      absl::Status alive = CheckAlive();
      if (!alive.ok()) return End(alive);
      bytes += static_cast<int64_t>(ItemBytes(i));
      absl::StatusOr<JobPtr> job = Prepare(i);
      if (job.ok() && *job != nullptr) {
        absl::Status fits = service_.parts_.check_fits ? service_.parts_.check_fits(**job) : absl::OkStatus();
        if (!fits.ok()) job = WithField(std::move(fits), absl::StrCat("items[", i, "]"));
      }
      if (job.ok()) {
        jobs_[static_cast<size_t>(i)] = *std::move(job);
      } else {
        FailItem(i, job.status());
      }
    }
    if (i == items_) return Submit();
    service_.parts_.pool->Post([self = shared_from_this(), i] { self->RunSlice(i); });
  }

  void Submit() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<JobPtr> jobs;
    int64_t tokens = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i] == nullptr) continue;
      jobs_[i]->deadline = deadline_;
      jobs_[i]->done = [self = shared_from_this(), i](JobResult result) { self->JobDone(i, std::move(result)); };
      tokens += jobs_[i]->tokens();
      jobs.push_back(std::move(jobs_[i]));
      waits_.push_back(i);
    }
    jobs_.clear();
    absl::Status status = CheckReply(static_cast<int64_t>(jobs.size()), tokens);
    const int64_t queue_tokens = service_.parts_.queue->limits().max_tokens;
    if (status.ok() && tokens > queue_tokens) {
      // Would be refused however often it came again: not overload.
      status = InvalidField("items", absl::StrCat("have ", tokens, " tokens together, the queue holds at most ",
                                                  queue_tokens, "; send fewer items at once"));
    }
    if (status.ok()) status = CheckAlive();
    if (!status.ok()) return DropJobs(std::move(jobs), status);
    if (jobs.empty()) return Complete();
    pending_.store(jobs.size(), std::memory_order_relaxed);
    stage_ = Stage::kQueue;
    {
      // From here Cancel reaches the jobs, also when it comes before Submit: a cancelled job leaves the queue unrun.
      absl::MutexLock lock(&mutex_);
      status = cancelled_;
      if (status.ok()) submitted_ = jobs;
    }
    if (status.ok()) {
      status = service_.parts_.queue->Submit(jobs);
      if (status.ok()) return;
      if (absl::IsResourceExhausted(status)) status = Overloaded(status.message(), RetryAfter());
    }
    DropJobs(std::move(jobs), status);
  }

  // Ends the call without having its jobs run. They refer to the call, so that link is cut first.
  void DropJobs(std::vector<JobPtr> jobs, const absl::Status& status) {
    const std::shared_ptr<BatchCall> self = shared_from_this();
    for (const JobPtr& job : jobs) job->done = nullptr;
    End(status);
  }

  void JobDone(size_t i, JobResult result) {
    results_[i] = std::move(result);
    // The last one sees what all others have written.
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      service_.parts_.pool->PostFirst([self = shared_from_this()] { self->Complete(); });
    }
  }

  void FailItem(int i, const absl::Status& status) {
    service_.parts_.rejections->Count(status);
    SetItemStatus(i, status);
  }

  void Complete() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = cancelled_;
    }
    for (const size_t i : waits_) {
      if (status.ok() && EndsCall(results_[i].status)) status = results_[i].status;
    }
    if (!status.ok()) return End(status);
    for (const size_t i : waits_) {
      const int item = static_cast<int>(i);
      const absl::Duration queued = results_[i].queued, computed = results_[i].computed;
      absl::Status answered = results_[i].status.ok() ? Answer(item, std::move(results_[i])) : results_[i].status;
      if (!answered.ok()) {
        FailItem(item, answered);
      } else if (service_.parts_.observer != nullptr) {
        const auto [in, out] = Tokens(item);
        service_.parts_.observer->ItemDone(op(), queued, computed, in, out);
      }
    }
    End(absl::OkStatus());
  }

  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
      submitted_.clear();
    }
    if (service_.parts_.observer != nullptr && (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))) {
      const bool computed = std::any_of(results_.begin(), results_.end(),
                                        [](const JobResult& result) { return result.computed > absl::ZeroDuration(); });
      service_.parts_.observer->Cancelled(computed ? Stage::kCompute : stage_);
    }
    // Before the answer: whoever has it may count on the room and on the languages' being free.
    permit_.Release();
    languages_.clear();
    if (status.ok()) {
      Reply();
    } else {
      Fail(status);
    }
  }

  Permit permit_;
  int items_ = 0;
  std::vector<JobPtr> jobs_;   // by item, until Submit
  std::vector<size_t> waits_;  // items that have a job
  std::vector<bool> failed_;   // by item: its language is unknown
  std::vector<Needed> languages_;
  std::map<std::string, int> places_;  // of codes in languages_
  int names_found_ = 0;                // by the running slice
  Stage stage_ = Stage::kTokenize;
  std::vector<JobResult> results_;  // by item
  std::atomic<size_t> pending_{0};

  mutable absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  std::vector<JobPtr> submitted_ ABSL_GUARDED_BY(mutex_);
  uint64_t ticket_ ABSL_GUARDED_BY(mutex_) = 0;  // of the leases that the call waits for
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class TextService::TranslateCall final : public BatchCall {
 public:
  TranslateCall(TextService* service, absl::Time deadline, std::unique_ptr<v1::TranslateRequest> request,
                TranslateDone done)
      : BatchCall(service, deadline), request_(std::move(request)), done_(std::move(done)) {}

 private:
  absl::Status CheckRequest() override {
    if (!model().config().translates) {
      return InvalidField("model", absl::StrCat(service_.name_, " does not translate"));
    }
    if (const auto field = FindInvalidUtf8(*request_)) return InvalidField(*field, "is not valid UTF-8");
    absl::StatusOr<CheckedTranslateOptions> options =
        CheckOptions(request_->options(), model().config().generation, limits());
    if (!options.ok()) return options.status();
    options_ = *std::move(options);
    absl::StatusOr<std::string> prompt = ChoosePrompt(model().config(), request_->prompt());
    if (!prompt.ok()) return prompt.status();
    prompt_ = *std::move(prompt);
    absl::Status status = Choose(request_->source(), request_->source_adapter(), "source", &source_);
    if (status.ok()) status = Choose(request_->target(), request_->target_adapter(), "target", &target_);
    if (!status.ok()) return status;
    bool source_named = request_->items().empty() || source_.place >= 0;
    bool target_named = request_->items().empty() || target_.place >= 0;
    for (const v1::TranslateItem& item : request_->items()) {
      if (item.target_prefix_ids_size() > 0) return RefusedOption("items.target_prefix_ids", "leave it out");
      source_named |= !item.source().empty();
      target_named |= !item.target().empty();
    }
    if (!source_named) return MissingLanguage("source");
    if (!target_named) return MissingLanguage("target");
    response_.set_model(service_.name_);
    response_.mutable_results()->Reserve(request_->items_size());
    for (int i = 0; i < request_->items_size(); ++i) response_.add_results();
    places_of_.resize(static_cast<size_t>(request_->items_size()));
    targets_.resize(static_cast<size_t>(request_->items_size()));
    return absl::OkStatus();
  }

  absl::Status Resolve(int i) override {
    const v1::TranslateItem& item = request_->items(i);
    v1::TranslateResult& result = *response_.mutable_results(i);
    absl::StatusOr<int> source = PlaceFor(source_, item.source(), i);
    if (!source.ok()) return source.status();
    result.set_source(CodeAt(*source));
    absl::StatusOr<int> target = PlaceFor(target_, item.target(), i);
    if (!target.ok()) return target.status();
    result.set_target(CodeAt(*target));
    places_of_[static_cast<size_t>(i)] = {*source, *target};
    return absl::OkStatus();
  }

  absl::Status CheckAdapters() override {
    absl::Status status = CheckAdapter(source_);
    return status.ok() ? CheckAdapter(target_) : status;
  }

  const char* op() const override { return "Translate"; }

  std::pair<int64_t, int64_t> Tokens(int i) const override {
    return {response_.results(i).input_tokens(), response_.results(i).output_tokens()};
  }

  size_t ItemBytes(int i) const override { return request_->items(i).text().size(); }

  absl::StatusOr<JobPtr> Prepare(int i) override {
    const v1::TranslateItem& item = request_->items(i);
    v1::TranslateResult& result = *response_.mutable_results(i);
    auto job = std::make_shared<Job>();
    const auto [source, target] = places_of_[static_cast<size_t>(i)];
    absl::Status status = Use(source, source_, item.source_adapter(), &job->source, &job->source_adapter);
    if (status.ok()) status = Use(target, target_, item.target_adapter(), &job->target, &job->target_adapter);
    if (!status.ok()) return status;
    const std::string field = absl::StrCat("items[", i, "].", item.source_ids().empty() ? "text" : "source_ids");
    absl::StatusOr<SourceTokens> tokens;
    if (!item.source_ids().empty()) {
      if (!item.text().empty()) return InvalidField(field, "comes with text: send one of them");
      tokens = CheckIds(item.source_ids(), *job->source, model().config().longest_source(), field);
    } else if (!IsBlank(item.text())) {
      absl::StatusOr<SourcePrompt> prompt = ResolveSource(model().config().prompt, job->source->config(),
                                                          job->source->tokenizer(), &job->target->config());
      if (!prompt.ok()) return prompt.status();
      tokens = Tokenize(prompt_, item.text(), *job->source, *prompt, model().config().longest_source(),
                        limits().max_characters, options_.truncate, field);
    } else {
      tokens = SourceTokens{};
    }
    if (!tokens.ok()) return tokens.status();
    const bool zero_shot = model().IsZeroShot(job->source->code(), job->target->code());
    result.mutable_timings()->set_tokenize_seconds(Elapsed());
    if (tokens->ids.empty()) {
      // Blank, or made of characters that the tokenizer drops: there is nothing to translate.
      result.set_text(item.text());
      result.set_finish_reason(v1::FINISH_REASON_EMPTY);
      result.set_zero_shot(zero_shot);
      return nullptr;
    }
    absl::StatusOr<TargetPrompt> prompt =
        ResolveTarget(model().config().prompt, job->source->config(), job->target->config(), job->target->tokenizer());
    if (!prompt.ok()) return prompt.status();
    job->task = Job::Task::kTranslate;
    job->source_ids = std::move(tokens->ids);
    job->start_token = prompt->start;
    absl::StatusOr<kernels::SearchOptions> search = SearchFor(
        options_, job->tokens(), prompt->forced, SuppressedIds(model().config().generation, job->target->tokenizer()),
        model().config().special_tokens.eos, job->target->weights().vocabulary, max_positions(), limits());
    if (!search.ok()) return search.status();
    job->search = *std::move(search);
    result.set_zero_shot(zero_shot);
    DescribeSource(*tokens, job->source_ids.size(), result);
    if (options_.return_ids) {
      result.mutable_source_ids()->Assign(job->source_ids.begin(), job->source_ids.end());
    }
    targets_[static_cast<size_t>(i)] = job->target.get();
    return job;
  }

  absl::Status CheckReply(int64_t /*jobs*/, int64_t /*tokens*/) override { return absl::OkStatus(); }

  void SetItemStatus(int i, const absl::Status& status) override {
    v1::TranslateResult& result = *response_.mutable_results(i);
    v1::TranslateResult failed;
    failed.set_source(result.source());
    failed.set_target(result.target());
    *failed.mutable_status() = ToProto(status);
    result = std::move(failed);
  }

  absl::Status Answer(int i, JobResult job) override {
    v1::TranslateResult& result = *response_.mutable_results(i);
    const Language& target = *targets_[static_cast<size_t>(i)];
    if (job.hypotheses.empty()) return absl::InternalError("the search ended without a hypothesis");
    for (kernels::Hypothesis& hypothesis : job.hypotheses) {
      absl::StatusOr<std::string> text = target.tokenizer().Decode(hypothesis.ids);
      if (!text.ok())
        return absl::InternalError(absl::StrCat("the answer cannot be decoded: ", text.status().message()));
      v1::Hypothesis& out = *result.add_hypotheses();
      out.set_text(*std::move(text));
      out.set_finish_reason(FinishReasonOf(hypothesis.finish));
      const size_t length = hypothesis.ids.size();
      out.set_tokens(static_cast<int32_t>(length));
      if (options_.return_scores) {
        out.set_sum_log_prob(hypothesis.sum);
        out.set_mean_log_prob(length == 0 ? 0 : hypothesis.sum / static_cast<double>(length));
        out.set_score(hypothesis.score);
        out.mutable_token_log_probs()->Assign(hypothesis.log_probs.begin(), hypothesis.log_probs.end());
      }
      if (options_.return_ids) out.mutable_ids()->Assign(hypothesis.ids.begin(), hypothesis.ids.end());
    }
    const v1::Hypothesis& best = result.hypotheses(0);
    result.set_text(best.text());
    result.set_finish_reason(best.finish_reason());
    result.set_output_tokens(best.tokens());
    SetEngineTimes(job, result.mutable_timings());
    return absl::OkStatus();
  }

  void Reply() override {
    SetTotals(Elapsed(), response_);
    std::exchange(done_, nullptr)(std::move(response_));
  }

  void Fail(const absl::Status& status) override { std::exchange(done_, nullptr)(status); }

  const std::unique_ptr<v1::TranslateRequest> request_;
  TranslateDone done_;
  CheckedTranslateOptions options_;
  std::string prompt_;  // text before every item's
  LanguageChoice source_, target_;
  std::vector<std::pair<int, int>> places_of_;  // by item: of source and target
  std::vector<const Language*> targets_;        // by item; null without a job. The call's leases keep them
  v1::TranslateResponse response_;
};

class TextService::EncodeCall final : public BatchCall {
 public:
  EncodeCall(TextService* service, absl::Time deadline, std::unique_ptr<v1::EncodeRequest> request, EncodeDone done)
      : BatchCall(service, deadline), request_(std::move(request)), done_(std::move(done)) {}

 private:
  int64_t embedding_size() const { return model().config().embedding_size(); }

  absl::Status CheckRequest() override {
    if (!model().config().encodes) return InvalidField("model", absl::StrCat(service_.name_, " does not encode"));
    if (const auto field = FindInvalidUtf8(*request_)) return InvalidField(*field, "is not valid UTF-8");
    absl::StatusOr<CheckedEncodeOptions> options =
        CheckOptions(request_->options(), embedding_size(), model().config().pooling.normalize);
    if (!options.ok()) return options.status();
    options_ = *options;
    absl::StatusOr<std::string> prompt = ChoosePrompt(model().config(), request_->prompt());
    if (!prompt.ok()) return prompt.status();
    prompt_ = *std::move(prompt);
    absl::Status status = Choose(request_->language(), request_->adapter(), "language", &language_);
    if (!status.ok()) return status;
    const bool named = request_->items().empty() || language_.place >= 0 ||
                       std::any_of(request_->items().begin(), request_->items().end(),
                                   [](const v1::EncodeItem& item) { return !item.language().empty(); });
    if (!named) return MissingLanguage("language");
    response_.set_model(service_.name_);
    response_.set_dimensions(static_cast<int32_t>(embedding_size()));
    for (int i = 0; i < request_->items_size(); ++i) response_.add_results();
    places_of_.resize(static_cast<size_t>(request_->items_size()));
    return absl::OkStatus();
  }

  absl::Status Resolve(int i) override {
    absl::StatusOr<int> place = PlaceFor(language_, request_->items(i).language(), i);
    if (!place.ok()) return place.status();
    response_.mutable_results(i)->set_language(CodeAt(*place));
    places_of_[static_cast<size_t>(i)] = *place;
    return absl::OkStatus();
  }

  absl::Status CheckAdapters() override { return CheckAdapter(language_); }

  const char* op() const override { return "Encode"; }

  std::pair<int64_t, int64_t> Tokens(int i) const override { return {response_.results(i).input_tokens(), 0}; }

  size_t ItemBytes(int i) const override { return request_->items(i).text().size(); }

  absl::StatusOr<JobPtr> Prepare(int i) override {
    const v1::EncodeItem& item = request_->items(i);
    v1::EncodeResult& result = *response_.mutable_results(i);
    auto job = std::make_shared<Job>();
    absl::Status status =
        Use(places_of_[static_cast<size_t>(i)], language_, item.adapter(), &job->source, &job->source_adapter);
    if (!status.ok()) return status;
    const std::string field = absl::StrCat("items[", i, "].", item.ids().empty() ? "text" : "ids");
    absl::StatusOr<SourceTokens> tokens;
    if (!item.ids().empty()) {
      if (!item.text().empty()) return InvalidField(field, "come with text: send one of them");
      tokens = CheckIds(item.ids(), *job->source, model().config().longest_source(), field);
    } else {
      if (IsBlank(item.text())) return InvalidField(field, "is blank: a blank text has no vector");
      absl::StatusOr<SourcePrompt> prompt =
          ResolveSource(model().config().prompt, job->source->config(), job->source->tokenizer(), nullptr);
      if (!prompt.ok()) return prompt.status();
      tokens = Tokenize(prompt_, item.text(), *job->source, *prompt, model().config().longest_source(),
                        limits().max_characters, options_.truncate, field);
    }
    if (!tokens.ok()) return tokens.status();
    if (tokens->ids.empty()) return InvalidField(field, "has nothing that the tokenizer keeps");
    job->task = Job::Task::kEncode;
    job->source_ids = std::move(tokens->ids);
    job->token_states = options_.token_states;
    job->normalize = options_.normalize;
    DescribeSource(*tokens, job->source_ids.size(), result);
    result.mutable_timings()->set_tokenize_seconds(Elapsed());
    if (options_.return_ids) result.mutable_ids()->Assign(job->source_ids.begin(), job->source_ids.end());
    return job;
  }

  // Vectors are what makes a reply large: their bytes are known before anything is computed.
  absl::Status CheckReply(int64_t jobs, int64_t tokens) override {
    const int64_t states = options_.token_states ? tokens : 0;
    const int64_t vectors = jobs + states;
    const int64_t bytes = (jobs * embedding_size() + states * model().config().architecture.d_model) *
                          static_cast<int64_t>(sizeof(float));
    if (bytes <= limits().max_message_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("items need ", vectors, " vectors, ", bytes,
                                                     " bytes, and a reply holds at most ", limits().max_message_bytes,
                                                     "; send fewer items at once"));
  }

  void SetItemStatus(int i, const absl::Status& status) override {
    v1::EncodeResult& result = *response_.mutable_results(i);
    v1::EncodeResult failed;
    failed.set_language(result.language());
    *failed.mutable_status() = ToProto(status);
    result = std::move(failed);
  }

  absl::Status Answer(int i, JobResult job) override {
    v1::EncodeResult& result = *response_.mutable_results(i);
    if (job.embedding.size() != static_cast<size_t>(embedding_size())) {
      return absl::InternalError("the engine gave no vector");
    }
    result.mutable_embedding()->Assign(job.embedding.begin(), job.embedding.end());
    result.mutable_token_states()->Assign(job.token_states.begin(), job.token_states.end());
    SetEngineTimes(job, result.mutable_timings());
    return absl::OkStatus();
  }

  void Reply() override {
    SetTotals(Elapsed(), response_);
    std::exchange(done_, nullptr)(std::move(response_));
  }

  void Fail(const absl::Status& status) override { std::exchange(done_, nullptr)(status); }

  const std::unique_ptr<v1::EncodeRequest> request_;
  EncodeDone done_;
  CheckedEncodeOptions options_;
  std::string prompt_;  // text before every item's
  LanguageChoice language_;
  std::vector<int> places_of_;  // by item
  v1::EncodeResponse response_;
};

TextService::TextService(std::string name, Parts parts, const TextServiceOptions& options)
    : name_(std::move(name)),
      parts_(std::move(parts)),
      options_(options),
      permits_(options.max_inflight_items, options.max_inflight_bytes) {}

absl::StatusOr<std::unique_ptr<TextService>> TextService::Create(std::string name, Parts parts,
                                                                 const TextServiceOptions& options) {
  const RequestLimits& limits = options.limits;
  // A request within the limits must be one that can be admitted when nothing else is there.
  if (limits.max_items > std::min(options.max_inflight_items, parts.queue->limits().max_items)) {
    return absl::InvalidArgumentError(absl::StrCat("a request may have ", limits.max_items,
                                                   " items, but the queue holds ", parts.queue->limits().max_items,
                                                   " and ", options.max_inflight_items, " may be in flight"));
  }
  if (limits.max_message_bytes > options.max_inflight_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a request may have ", limits.max_message_bytes, " bytes, but only ",
                                                   options.max_inflight_bytes, " may be in flight"));
  }
  for (const LanguageInfo& info : parts.languages->List()) {
    if (info.loaded == nullptr) continue;
    absl::Status prompt = model_loader::CheckPrompt(parts.languages->model().config(), *info.loaded);
    if (!prompt.ok()) return prompt;
  }
  if (const Model& model = parts.languages->model(); !parts.languages->has_languages()) {
    const auto nameless = model.LoadLanguage("");
    absl::Status prompt = nameless.ok() ? model_loader::CheckPrompt(model.config(), **nameless) : nameless.status();
    if (!prompt.ok()) return prompt;
  }
  return std::unique_ptr<TextService>(new TextService(std::move(name), std::move(parts), options));
}

std::shared_ptr<Call> TextService::Translate(std::unique_ptr<v1::TranslateRequest> request, absl::Time deadline,
                                             TranslateDone done) {
  return StartCall<TranslateCall>(this, std::move(request), deadline, std::move(done));
}

std::shared_ptr<Call> TextService::Encode(std::unique_ptr<v1::EncodeRequest> request, absl::Time deadline,
                                          EncodeDone done) {
  return StartCall<EncodeCall>(this, std::move(request), deadline, std::move(done));
}

}  // namespace koine::server
