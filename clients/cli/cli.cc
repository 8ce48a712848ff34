#include "clients/cli/cli.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "clients/cli/lines.h"
#include "clients/cli/numbers.h"
#include "clients/cli/report.h"
#include "clients/cpp/client.h"

namespace koine::cli {
namespace {

using client::Client;

// One line may not be larger than what a server takes in one message by default (4 MiB); a request of several lines
// stays well under it.
constexpr size_t kMaxLineBytes = size_t{4} << 20;
constexpr size_t kMaxRequestBytes = size_t{1} << 20;
// A full server is asked again, waiting as it says and longer each time.
constexpr int kRetries = 8;

constexpr char kFooter[] =
    "Exit codes: 0 ok; 1 an item failed; 2 usage; 3 server unreachable or no answer in time; 4 request refused.\n"
    "--server and --timeout may also follow the command. Texts that begin with '-' go after '--'.";

struct Arguments {
  std::string server = "localhost:50051";
  std::string timeout = "60";
  std::string model;
  bool json = false;
  std::vector<std::string> texts;
  // translate
  std::string from, to, from_adapter, to_adapter;
  int beam = 0, num_hypotheses = 0, max_tokens = 0;
  std::optional<int> min_tokens;
  std::optional<double> length_penalty;
  std::string early_stopping;
  bool truncate = false, scores = false, ids = false;
  std::string prompt;  // encode too
  // encode
  std::string language, adapter;
  bool no_normalize = false, cosine = false;
  // stats
  bool only_parameters = false, only_server = false, checksums = false;
  // admin
  bool pin = false;
  double wait = 0;
};

// "30", "1.5", "500ms", "2m"; 0 is none.
std::optional<absl::Duration> ParseTimeout(const std::string& text) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return std::nullopt;
  }
  // What is no number, and what is too large for one, has become infinite.
  if (duration < absl::ZeroDuration() || duration == absl::InfiniteDuration()) return std::nullopt;
  return duration == absl::ZeroDuration() ? absl::InfiniteDuration() : duration;
}

std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\r", " "}, {"\n", " "}}); }

void PrintError(const Io& io, absl::string_view text) { *io.err << "koine: " << OneLine(text) << std::endl; }

ExitCode Fail(const Io& io, const Client& client, const absl::Status& status) {
  const client::ClientOptions& options = client.options();
  if (absl::IsUnavailable(status)) {
    PrintError(io, absl::StrCat("the server at ", options.address, " is unavailable: ", status.message()));
  } else if (absl::IsDeadlineExceeded(status)) {
    PrintError(io, absl::StrCat("no answer from ", options.address, " within ", absl::FormatDuration(options.timeout),
                                " (see --timeout): ", status.message()));
  } else {
    const std::optional<absl::Duration> delay = client::RetryDelay(status);
    PrintError(io, absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message(),
                                delay ? absl::StrCat(" (try again in ", absl::FormatDuration(*delay), ")") : ""));
  }
  return ExitCodeFor(status);
}

// ---------------------------------------------------------------------------------------------------------------------
// What translate and encode do differently. `label` names an item in errors: "text 2" or "line 17".

class TranslateTask {
 public:
  using Request = v1::TranslateRequest;
  using Reply = v1::TranslateResponse;
  using Result = v1::TranslateResult;

  explicit TranslateTask(const Arguments& arguments) : arguments_(arguments) {}

  Request NewRequest() const {
    Request request;
    request.set_model(arguments_.model);
    request.set_source(arguments_.from);
    request.set_target(arguments_.to);
    request.set_source_adapter(arguments_.from_adapter);
    request.set_target_adapter(arguments_.to_adapter);
    v1::TranslateOptions& options = *request.mutable_options();
    options.set_beam_size(arguments_.beam);
    options.set_num_hypotheses(arguments_.num_hypotheses);
    options.set_max_tokens(arguments_.max_tokens);
    if (arguments_.min_tokens) options.set_min_tokens(*arguments_.min_tokens);
    if (arguments_.length_penalty) options.set_length_penalty(*arguments_.length_penalty);
    if (arguments_.early_stopping == "true") options.set_early_stopping(v1::EARLY_STOPPING_TRUE);
    if (arguments_.early_stopping == "false") options.set_early_stopping(v1::EARLY_STOPPING_FALSE);
    if (arguments_.early_stopping == "never") options.set_early_stopping(v1::EARLY_STOPPING_NEVER);
    request.set_prompt(arguments_.prompt);
    options.set_truncate(arguments_.truncate);
    options.set_return_scores(arguments_.scores);
    options.set_return_ids(arguments_.ids);
    return request;
  }

  absl::StatusOr<Reply> Call(const Client& client, const Request& request) const { return client.Translate(request); }
  void CallAsync(const Client& client, const Request& request, client::ReplyCallback<Reply> done) const {
    client.TranslateAsync(request, std::move(done));
  }

  void Print(const Io& io, const std::string& label, int64_t number, const std::string&, const Result& result) const {
    if (result.truncated()) {
      PrintError(io, absl::StrCat(label, ": only ", result.input_tokens(), " tokens of the text were read"));
    }
    if (result.finish_reason() == v1::FINISH_REASON_LENGTH) {
      PrintError(io, absl::StrCat(label, ": the translation was cut at ", result.output_tokens(),
                                  " tokens (see --max-tokens)"));
    }
    if (arguments_.num_hypotheses <= 1) {
      const double score = result.hypotheses().empty() ? 0 : result.hypotheses(0).score();
      if (arguments_.scores) *io.out << absl::StrFormat("%.4f\t", score);
      *io.out << result.text() << '\n';
      return;
    }
    const auto print = [&](int rank, double score, const std::string& text) {
      *io.out << number << '\t' << rank << '\t';
      if (arguments_.scores) *io.out << absl::StrFormat("%.4f\t", score);
      *io.out << text << '\n';
    };
    if (result.hypotheses().empty()) print(1, 0, result.text());  // a blank text
    for (int i = 0; i < result.hypotheses_size(); ++i) {
      print(i + 1, result.hypotheses(i).score(), result.hypotheses(i).text());
    }
  }
  void PrintFailed(const Io& io) const { *io.out << '\n'; }
  void PrintEnd(const Io&) const {}

 private:
  const Arguments& arguments_;
};

class EncodeTask {
 public:
  using Request = v1::EncodeRequest;
  using Reply = v1::EncodeResponse;
  using Result = v1::EncodeResult;

  explicit EncodeTask(const Arguments& arguments) : arguments_(arguments) {}

  Request NewRequest() const {
    Request request;
    request.set_model(arguments_.model);
    request.set_language(arguments_.language);
    request.set_adapter(arguments_.adapter);
    request.set_prompt(arguments_.prompt);
    if (arguments_.no_normalize) request.mutable_options()->set_normalize(false);
    request.mutable_options()->set_truncate(arguments_.truncate);
    request.mutable_options()->set_return_ids(arguments_.ids);
    return request;
  }

  absl::StatusOr<Reply> Call(const Client& client, const Request& request) const { return client.Encode(request); }
  void CallAsync(const Client& client, const Request& request, client::ReplyCallback<Reply> done) const {
    client.EncodeAsync(request, std::move(done));
  }

  void Print(const Io& io, const std::string& label, int64_t, const std::string& text, const Result& result) {
    if (result.truncated()) {
      PrintError(io, absl::StrCat(label, ": only ", result.input_tokens(), " tokens of the text were read"));
    }
    if (arguments_.cosine) {
      texts_.push_back(text);
      vectors_.emplace_back(result.embedding().begin(), result.embedding().end());
      return;
    }
    std::string line;
    for (const float x : result.embedding()) {
      // Nine digits bring back the same float.
      absl::StrAppendFormat(&line, "%s%.9g", line.empty() ? "" : " ", static_cast<double>(x));
    }
    *io.out << line << '\n';
  }
  void PrintFailed(const Io& io) const {
    if (!arguments_.cosine) *io.out << '\n';
  }
  void PrintEnd(const Io& io) const {
    if (arguments_.cosine) *io.out << CosineReport(texts_, vectors_);
  }

 private:
  const Arguments& arguments_;
  std::vector<std::string> texts_;
  std::vector<std::vector<float>> vectors_;
};

// Prints one item; true if it was answered.
template <typename Task>
bool PrintItem(const Io& io, Task& task, const Arguments& arguments, const std::string& label, int64_t number,
               const std::string& text, const typename Task::Result& result) {
  const absl::Status status = client::ItemStatus(result.status());
  if (!status.ok()) {
    PrintError(io, absl::StrCat(label, ": ", absl::StatusCodeToString(status.code()), ": ", status.message()));
    if (!arguments.json) task.PrintFailed(io);
  } else if (!arguments.json) {
    task.Print(io, label, number, text, result);
  }
  return status.ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Texts given as arguments: one request.

template <typename Task>
int RunTexts(const Io& io, const Client& client, Task task, const Arguments& arguments) {
  typename Task::Request request = task.NewRequest();
  for (const std::string& text : arguments.texts) {
    if (!IsUtf8(text)) {
      PrintError(io, absl::StrCat("text ", request.items_size() + 1, " is not valid UTF-8"));
      return kUsage;
    }
    request.add_items()->set_text(text);
  }
  const auto reply = task.Call(client, request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  if (reply->results_size() != request.items_size()) {
    return Fail(io, client,
                absl::InternalError(absl::StrCat("the server answered ", reply->results_size(), " of ",
                                                 request.items_size(), " items")));
  }
  int code = kOk;
  for (int i = 0; i < reply->results_size(); ++i) {
    const size_t index = static_cast<size_t>(i);
    if (!PrintItem(io, task, arguments, absl::StrCat("text ", i + 1), i + 1, arguments.texts[index],
                   reply->results(i))) {
      code = kItemFailed;
    }
  }
  if (arguments.json) {
    *io.out << ToJson(*reply) << '\n';
  } else {
    task.PrintEnd(io);
  }
  return code;
}

// ---------------------------------------------------------------------------------------------------------------------
// Lines of standard input: a window of requests, answers in order.

// An event that gRPC's threads raise and poll(2) sees. Shared with callbacks, which may outlive a failed run.
class Wake {
 public:
  Wake() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Wake() {
    if (fd_ >= 0) close(fd_);
  }
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  int fd() const { return fd_; }
  void Raise() {
    const uint64_t one = 1;
    // Can only fail when the counter is full, and then the event is raised already.
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
  }
  void Clear() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
  }

 private:
  const int fd_;
};

// "12,345 of about 20000 lines, 89.0 lines/s" on a terminal, from the second second on.
class Progress {
 public:
  explicit Progress(const Io& io) : io_(io), start_(absl::Now()), last_(start_) {
    struct stat info = {};
    if (fstat(io.in, &info) == 0 && S_ISREG(info.st_mode)) size_ = static_cast<int64_t>(info.st_size);
    // Somebody who types sees the answers; numbers between them would disturb.
    shown_ = io.err_is_terminal && isatty(io.in) != 1;
  }

  void Show(int64_t lines, int64_t bytes) {
    const absl::Time now = absl::Now();
    if (!shown_ || now - start_ < absl::Seconds(2) || now - last_ < absl::Milliseconds(500)) return;
    last_ = now;
    const double rate = static_cast<double>(lines) / absl::ToDoubleSeconds(now - start_);
    const std::string share =
        size_ > 0 ? absl::StrFormat(" of about %.0f", static_cast<double>(lines) * static_cast<double>(size_) /
                                                          static_cast<double>(std::max<int64_t>(bytes, 1)))
                  : "";
    *io_.err << "\r\033[K" << GroupDigits(lines) << share << " lines, " << absl::StrFormat("%.1f", rate) << " lines/s"
             << std::flush;
    drawn_ = true;
  }
  // Before anything else is written.
  void Erase() {
    if (drawn_) *io_.err << "\r\033[K" << std::flush;
    drawn_ = false;
  }

 private:
  const Io& io_;
  const absl::Time start_;
  absl::Time last_;
  int64_t size_ = 0;
  bool shown_ = false;
  bool drawn_ = false;
};

template <typename Task>
class LinePipeline {
 public:
  LinePipeline(const Io& io, const Client& client, Task task, const Arguments& arguments)
      : io_(io),
        client_(client),
        task_(std::move(task)),
        arguments_(arguments),
        reader_(io.in, kMaxLineBytes),
        progress_(io) {}

  int Run() {
    if (wake_->fd() < 0) {
      PrintError(io_, absl::StrCat("cannot create an event: ", std::strerror(errno)));
      return kRefused;
    }
    while (true) {
      while (!window_.empty() && window_.front()->done.load(std::memory_order_acquire)) {
        if (!FinishFront()) return code_;
      }
      if (window_.empty() && reader_.at_end() && reader_.lines().empty()) break;
      const bool room = window_.size() < static_cast<size_t>(kRequestsInFlight);
      const bool full = reader_.lines().size() >= static_cast<size_t>(kLinesPerRequest);
      if (room && (full || (reader_.at_end() && !reader_.lines().empty()))) {
        Send();
        continue;
      }
      // Something is there, but not enough: a moment for more to come, then it goes as it is, so that somebody who
      // types one line gets one answer.
      const bool waiting = room && !reader_.lines().empty();
      if (!Wait(!reader_.at_end() && !full, waiting ? 10 : -1)) {
        if (code_ != kOk && code_ != kItemFailed) return code_;
        if (waiting) Send();
      }
    }
    progress_.Erase();
    if (!arguments_.json) task_.PrintEnd(io_);
    return code_;
  }

 private:
  // One request in the window. Its callback writes `reply`, then `done`.
  struct Chunk {
    std::vector<Line> lines;
    std::vector<int> places;  // of each line among the request's items; -1: not sent
    typename Task::Request request;
    absl::StatusOr<typename Task::Reply> reply = absl::UnknownError("no answer yet");
    std::atomic<bool> done{false};
  };

  // Waits for an answer or input. False if neither came in time, or reading failed (then code_ says so).
  bool Wait(bool input, int timeout_ms) {
    pollfd fds[2] = {{wake_->fd(), POLLIN, 0}, {io_.in, POLLIN, 0}};
    const int ready = poll(fds, input ? 2 : 1, timeout_ms);
    if (ready < 0) return errno == EINTR;
    if (ready == 0) return false;
    if (fds[0].revents != 0) wake_->Clear();
    if (input && fds[1].revents != 0) {
      if (const absl::Status status = reader_.Read(); !status.ok()) {
        progress_.Erase();
        PrintError(io_, status.message());
        code_ = kUsage;
        return false;
      }
    }
    return true;
  }

  void Send() {
    auto chunk = std::make_shared<Chunk>();
    chunk->request = task_.NewRequest();
    size_t bytes = 0;
    std::deque<Line>& lines = reader_.lines();
    while (!lines.empty() && chunk->lines.size() < static_cast<size_t>(kLinesPerRequest)) {
      Line& line = lines.front();
      if (!chunk->lines.empty() && bytes + line.text.size() > kMaxRequestBytes) break;
      bytes += line.text.size();
      // What the server would refuse with everything beside it is not sent.
      if (line.too_long || !IsUtf8(line.text)) {
        chunk->places.push_back(-1);
      } else {
        chunk->places.push_back(chunk->request.items_size());
        chunk->request.add_items()->set_text(line.text);
      }
      chunk->lines.push_back(std::move(line));
      lines.pop_front();
    }
    window_.push_back(chunk);
    if (chunk->request.items().empty()) {
      chunk->reply = typename Task::Reply();
      chunk->done = true;
      return;
    }
    task_.CallAsync(client_, chunk->request, [chunk, wake = wake_](absl::StatusOr<typename Task::Reply> reply) {
      chunk->reply = std::move(reply);
      chunk->done.store(true, std::memory_order_release);
      wake->Raise();
    });
  }

  // Prints the oldest request's answers. False if the run cannot go on.
  bool FinishFront() {
    const std::shared_ptr<Chunk> chunk = window_.front();
    window_.pop_front();
    progress_.Erase();
    for (int attempt = 1; attempt <= kRetries && !chunk->reply.ok(); ++attempt) {
      const std::optional<absl::Duration> delay = client::RetryDelay(chunk->reply.status());
      if (!delay) break;
      absl::SleepFor(std::min(*delay * attempt, absl::Seconds(30)));
      chunk->reply = task_.Call(client_, chunk->request);
    }
    if (!chunk->reply.ok()) {
      code_ = Fail(io_, client_, chunk->reply.status());
      return false;
    }
    if (chunk->reply->results_size() != chunk->request.items_size()) {
      code_ = Fail(io_, client_,
                   absl::InternalError(absl::StrCat("the server answered ", chunk->reply->results_size(), " of ",
                                                    chunk->request.items_size(), " items")));
      return false;
    }
    for (size_t i = 0; i < chunk->lines.size(); ++i) {
      const Line& line = chunk->lines[i];
      typename Task::Result unsent;
      if (chunk->places[i] < 0) {
        unsent.mutable_status()->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
        unsent.mutable_status()->set_message(
            line.too_long ? absl::StrCat("the line is longer than ", HumanBytes(kMaxLineBytes)) : "not valid UTF-8");
      }
      const typename Task::Result& result = chunk->places[i] < 0 ? unsent : chunk->reply->results(chunk->places[i]);
      if (!PrintItem(io_, task_, arguments_, absl::StrCat("line ", line.number), line.number, line.text, result)) {
        code_ = kItemFailed;
      }
      if (arguments_.json) *io_.out << ToJson(result) << '\n';
    }
    io_.out->flush();
    if (!io_.out->good()) {
      PrintError(io_, "cannot write the output");
      code_ = kItemFailed;
      return false;
    }
    answered_ += static_cast<int64_t>(chunk->lines.size());
    for (const Line& line : chunk->lines) answered_bytes_ += static_cast<int64_t>(line.text.size()) + 1;
    progress_.Show(answered_, answered_bytes_);
    return true;
  }

  const Io& io_;
  const Client& client_;
  Task task_;
  const Arguments& arguments_;
  const std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();
  LineReader reader_;
  Progress progress_;
  std::deque<std::shared_ptr<Chunk>> window_;
  int64_t answered_ = 0;        // lines
  int64_t answered_bytes_ = 0;  // of them, line feeds included
  int code_ = kOk;
};

template <typename Task>
int RunTask(const Io& io, const Client& client, const Arguments& arguments) {
  if (!arguments.texts.empty()) return RunTexts(io, client, Task(arguments), arguments);
  if (isatty(io.in) == 1 && io.err_is_terminal) {
    *io.err << "Reading lines; end with Ctrl-D." << std::endl;
  }
  return LinePipeline<Task>(io, client, Task(arguments), arguments).Run();
}

// ---------------------------------------------------------------------------------------------------------------------

int RunStats(const Io& io, const Client& client, const Arguments& arguments) {
  const bool both = arguments.only_parameters == arguments.only_server;
  if (both || arguments.only_parameters) {
    v1::GetParameterStatsRequest request;
    request.set_model(arguments.model);
    request.set_checksums(arguments.checksums);
    const auto reply = client.GetParameterStats(request);
    if (!reply.ok()) return Fail(io, client, reply.status());
    *io.out << (arguments.json ? ToJson(*reply) + "\n" : ParametersReport(*reply));
  }
  if (both && !arguments.json) *io.out << '\n';
  if (both || arguments.only_server) {
    const auto reply = client.GetServerStats();
    if (!reply.ok()) return Fail(io, client, reply.status());
    *io.out << (arguments.json ? ToJson(*reply) + "\n" : ServerReport(*reply));
  }
  return kOk;
}

int RunLanguages(const Io& io, const Client& client, const Arguments& arguments) {
  v1::ListLanguagesRequest request;
  request.set_model(arguments.model);
  const auto reply = client.ListLanguages(request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  *io.out << (arguments.json ? ToJson(*reply) + "\n" : LanguagesReport(*reply));
  return kOk;
}

int RunInfo(const Io& io, const Client& client, const Arguments& arguments) {
  v1::GetModelInfoRequest request;
  request.set_model(arguments.model);
  const auto reply = client.GetModelInfo(request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  *io.out << (arguments.json ? ToJson(*reply) + "\n" : ModelReport(*reply));
  return kOk;
}

int RunLoad(const Io& io, const Client& client, const Arguments& arguments) {
  v1::LoadLanguageRequest request;
  request.set_model(arguments.model);
  request.set_language(arguments.language);
  request.set_pin(arguments.pin);
  request.set_timeout_seconds(arguments.wait);
  const auto reply = client.LoadLanguage(request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  *io.out << (arguments.json ? ToJson(*reply) + "\n" : LanguageLine(reply->language()));
  return kOk;
}

int RunUnload(const Io& io, const Client& client, const Arguments& arguments) {
  v1::UnloadLanguageRequest request;
  request.set_model(arguments.model);
  request.set_language(arguments.language);
  request.set_timeout_seconds(arguments.wait);
  const auto reply = client.UnloadLanguage(request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  *io.out << (arguments.json ? ToJson(*reply) + "\n" : LanguageLine(reply->language()));
  return kOk;
}

int RunRescan(const Io& io, const Client& client, const Arguments& arguments) {
  v1::RescanLanguagesRequest request;
  request.set_model(arguments.model);
  const auto reply = client.RescanLanguages(request);
  if (!reply.ok()) return Fail(io, client, reply.status());
  *io.out << (arguments.json ? ToJson(*reply) + "\n" : RescanReport(*reply));
  // A script that has copied a folder wants to know that it is served.
  const bool broken = std::any_of(reply->models().begin(), reply->models().end(),
                                  [](const v1::ModelRescan& model) { return model.broken_size() > 0; });
  return broken ? kItemFailed : kOk;
}

// CLI11 takes a positional argument "[a,b]" for a list of two. A mark before such arguments hides their brackets from
// it; the mark is taken off afterwards.
constexpr char kMark = '\x01';

std::string Marked(const std::string& argument) {
  const bool list = argument.size() > 1 && argument.front() == '[' && argument.back() == ']';
  const bool marked = !argument.empty() && argument.front() == kMark;
  return list || marked ? kMark + argument : argument;
}

void Unmark(std::string* argument) {
  if (!argument->empty() && argument->front() == kMark) argument->erase(0, 1);
}

}  // namespace

ExitCode ExitCodeFor(const absl::Status& status) {
  if (status.ok()) return kOk;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kUnreachable : kRefused;
}

int RunCli(int argc, const char* const* argv, const std::string& version, const Io& io) {
  Arguments arguments;
  CLI::App app("Translates and encodes texts with a Koine server, and shows what the server holds.", "koine");
  app.footer(kFooter);
  app.set_version_flag("--version", "koine " + version);
  app.require_subcommand(1);
  app.fallthrough();
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("koine: ", error.what(), " (see --help)\n");
  });
  app.add_option("--server", arguments.server, "Address of the server, host:port")
      ->envname("KOINE_SERVER")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--timeout", arguments.timeout,
                 "Longest wait for an answer: seconds, or a number with a unit; 0: none")
      ->capture_default_str();
  app.add_option("--model", arguments.model, "Name of the model, where the server has several")->type_name("NAME");

  const auto command = [&](const char* name, const char* what) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->fallthrough();
    sub->footer(kFooter);
    return sub;
  };
  const auto json = [&](CLI::App* sub, const char* what) { return sub->add_flag("--json", arguments.json, what); };
  const auto items = [&](CLI::App* sub) {
    CLI::Option* as_json = json(sub, "Print the reply as JSON, one object; of standard input one object for each line");
    sub->add_flag("--ids", arguments.ids, "With the token ids that the model read and wrote")->needs(as_json);
    return as_json;
  };
  constexpr char kTexts[] = "Texts; without any, lines of standard input";
  constexpr char kJson[] = "Print the reply as JSON";

  CLI::App* translate = command("translate", "Translate texts, or lines of standard input");
  translate->add_option("--from", arguments.from, "Language of the texts, where the model has languages")
      ->type_name("CODE");
  translate->add_option("--to", arguments.to, "Language to translate into, where the model has languages")
      ->type_name("CODE");
  translate->add_option("--from-adapter", arguments.from_adapter, "Adapter of the source language by name, or none")
      ->type_name("NAME");
  translate->add_option("--to-adapter", arguments.to_adapter, "Adapter of the target language by name, or none")
      ->type_name("NAME");
  constexpr char kPrompt[] = "Text of the model's that goes before each, by name; none: without its default";
  translate->add_option("--prompt", arguments.prompt, kPrompt)->type_name("NAME");
  translate->add_option("--beam", arguments.beam, "Beam size; 1 is greedy; default: the model's, else 1")
      ->check(WholeBetween(1));
  translate
      ->add_option("--num-hypotheses", arguments.num_hypotheses,
                   "Translations of each text, best first, at most the beam size. More than 1: lines of item number, "
                   "rank, translation, with tabs between")
      ->check(WholeBetween(1));
  translate
      ->add_option("--length-penalty", arguments.length_penalty, "Rank by sum / length^X; default: the model's, else 1")
      ->check(Between(-10, 10));
  translate
      ->add_flag("--early-stopping", arguments.early_stopping,
                 "End the search when the beam is full; =false: when no live one can still win at its present length; "
                 "=never: at any length; default: the model's, else false")
      ->check(CLI::IsMember({"true", "false", "never"}));
  translate->add_option("--max-tokens", arguments.max_tokens, "Longest translation")->check(WholeBetween(1));
  translate->add_option("--min-tokens", arguments.min_tokens, "Shortest translation")->check(WholeBetween(0));
  translate->add_flag("--truncate", arguments.truncate, "Cut texts that are too long instead of refusing them");
  translate->add_flag("--scores", arguments.scores,
                      "Put the score (mean natural-log probability, unless --length-penalty) and a tab before each");
  items(translate);
  translate->add_option("TEXT", arguments.texts, kTexts);

  CLI::App* encode = command("encode", "Print sentence vectors of texts, or of lines of standard input");
  encode->add_option("--language", arguments.language, "Language of the texts, where the model has languages")
      ->type_name("CODE");
  encode->add_option("--adapter", arguments.adapter, "Adapter of the language by name, or none")->type_name("NAME");
  encode->add_option("--prompt", arguments.prompt, kPrompt)->type_name("NAME");
  encode->add_flag("--no-normalize", arguments.no_normalize, "Leave the vectors as long as they are");
  encode->add_flag("--truncate", arguments.truncate, "Cut texts that are too long instead of refusing them");
  CLI::Option* cosine =
      encode->add_flag("--cosine", arguments.cosine, "Print the cosine of each pair of texts instead of the vectors");
  cosine->excludes(items(encode));
  encode->add_option("TEXT", arguments.texts, kTexts);

  CLI::App* stats = command("stats", "Parameters and bytes by owner and component, and what the server is doing");
  stats->add_flag("--parameters", arguments.only_parameters, "Only the parameters");
  stats->add_flag("--engine", arguments.only_server, "Only the server");
  stats->add_flag("--checksums", arguments.checksums, "With checksums of the parameters");
  json(stats, "Print the replies as JSON: parameters on the first line, server on the second");
  CLI::App* languages = command("languages", "The languages of the model");
  json(languages, kJson);
  CLI::App* info = command("info", "What the model is, and the limits of requests");
  json(info, kJson);
  CLI::App* admin = command("admin", "Languages by hand; the server must run with --admin");
  admin->require_subcommand(1);
  const auto admin_command = [&](const char* name, const char* what) {
    CLI::App* sub = admin->add_subcommand(name, what);
    sub->fallthrough();
    json(sub, kJson);
    return sub;
  };
  const auto one_language = [&](CLI::App* sub) {
    sub->add_option("LANGUAGE", arguments.language, "Code or alias")->required();
    sub->add_option("--wait", arguments.wait, "Longest wait at the server in seconds; default 60")
        ->check(Between(0, 3600))
        ->type_name("SECONDS");
  };
  CLI::App* load = admin_command("load", "Load a language now");
  one_language(load);
  load->add_flag("--pin", arguments.pin, "And never evict it");
  CLI::App* unload = admin_command("unload", "Unpin a language and give its memory back");
  one_language(unload);
  CLI::App* rescan =
      admin_command("rescan", "Look for language folders that are new, changed or gone; exit code 1 if one is broken");
  // Kept for scripts written for later versions; whatever they pass, the answer is that it is not there.
  CLI::App* detect = command("detect", "Not offered by this version: find a text's language");
  CLI::App* score = command("score", "Not offered by this version: score a given translation");
  for (CLI::App* absent : {detect, score}) {
    absent->allow_extras();
    absent->fallthrough(false);
  }

  try {
    std::vector<std::string> words;  // last first, as CLI11 wants them
    for (int i = argc - 1; i > 0; --i) words.push_back(Marked(argv[i]));
    app.parse(std::move(words));
  } catch (const CLI::RequiredError& error) {
    // CLI11 asks for a command before it looks at the words that are none.
    const std::vector<std::string> unknown = app.remaining(true);
    if (unknown.empty()) {
      app.exit(error, *io.out, *io.err);
    } else {
      PrintError(io, absl::StrCat("unknown command or option ", unknown.front(), " (see --help)"));
    }
    return kUsage;
  } catch (const CLI::ParseError& error) {
    app.exit(error, *io.out, *io.err);
    io.out->flush();
    return dynamic_cast<const CLI::Success*>(&error) != nullptr ? kOk : kUsage;
  }
  for (std::string& text : arguments.texts) Unmark(&text);
  for (std::string* value :
       {&arguments.server, &arguments.timeout, &arguments.model, &arguments.from, &arguments.to,
        &arguments.from_adapter, &arguments.to_adapter, &arguments.language, &arguments.adapter, &arguments.prompt}) {
    Unmark(value);
  }
  if (detect->parsed() || score->parsed()) {
    PrintError(io, absl::StrCat(detect->parsed() ? "detect" : "score", ": version ", version,
                                " does not offer this command yet"));
    return kUsage;
  }
  if (arguments.cosine && arguments.texts.size() == 1) {
    PrintError(io, "--cosine needs two or more texts");
    return kUsage;
  }
  const std::optional<absl::Duration> timeout = ParseTimeout(arguments.timeout);
  if (!timeout) {
    PrintError(io, absl::StrCat("--timeout: not a time: ", arguments.timeout));
    return kUsage;
  }

  client::ClientOptions options;
  options.address = arguments.server;
  options.timeout = *timeout;
  options.connect_timeout = std::min(options.connect_timeout, *timeout);
  const absl::StatusOr<Client> client = Client::Connect(options);
  if (!client.ok()) {
    PrintError(io, client.status().message());
    return absl::IsInvalidArgument(client.status()) ? kUsage : ExitCodeFor(client.status());
  }
  int code = translate->parsed()   ? RunTask<TranslateTask>(io, *client, arguments)
             : encode->parsed()    ? RunTask<EncodeTask>(io, *client, arguments)
             : stats->parsed()     ? RunStats(io, *client, arguments)
             : languages->parsed() ? RunLanguages(io, *client, arguments)
             : load->parsed()      ? RunLoad(io, *client, arguments)
             : unload->parsed()    ? RunUnload(io, *client, arguments)
             : rescan->parsed()    ? RunRescan(io, *client, arguments)
                                   : RunInfo(io, *client, arguments);
  io.out->flush();
  if (!io.out->good() && code == kOk) {
    PrintError(io, "cannot write the output");
    code = kItemFailed;
  }
  return code;
}

}  // namespace koine::cli
