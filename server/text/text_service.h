// Messages in, messages out: validates requests, turns texts into jobs, and answers into texts. Knows no transport.
//
//   Translate/Encode   checks the request and takes permits, on the caller's thread; never blocks
//     -> text workers  find out which languages the items need and ask for leases of them
//     -> (the language store's thread, where one must be loaded first)
//     -> text workers  tokenise item by item; when all are done, one Submit for the whole request
//     -> engine        runs the jobs
//     -> text workers  detokenise, fill the reply, give the permits back, call `done`
#ifndef KOINE_SERVER_TEXT_TEXT_SERVICE_H_
#define KOINE_SERVER_TEXT_TEXT_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "koine/v1/koine.pb.h"
#include "model_loader/model/model.h"
#include "server/languages/language_store.h"
#include "server/schedule/queue.h"
#include "server/text/fault.h"
#include "server/text/limits.h"
#include "server/text/observer.h"
#include "server/text/permits.h"
#include "server/text/worker_pool.h"

namespace koine::server {

// A call that is under way.
class Call {
 public:
  virtual ~Call() = default;
  // Ends the call with `status` as soon as the engine lets go of its jobs: those that wait, for a language or in the
  // queue, leave at once, those that run stop between two steps. Without effect if the call has ended. Never blocks;
  // any thread.
  virtual void Cancel(const absl::Status& status) = 0;
};

// The text side of one model. Thread-safe. Outlives its calls: callers wait for their answers before they destroy it.
class TextService {
 public:
  using TranslateDone = std::function<void(absl::StatusOr<v1::TranslateResponse>)>;
  using EncodeDone = std::function<void(absl::StatusOr<v1::EncodeResponse>)>;

  // What the service works with; all outlive it.
  struct Parts {
    JobQueue* queue = nullptr;
    WorkerPool* pool = nullptr;
    LanguageStore* languages = nullptr;  // started
    Rejections* rejections = nullptr;    // counts items that fail; callers count whole requests
    Observer* observer = nullptr;        // may be null
    // Engine::CheckFits: INVALID_ARGUMENT for a job that could never run.
    std::function<absl::Status(const Job&)> check_fits;
  };

  // `name` is what requests call the model. FAILED_PRECONDITION if the vocabulary of a language that is loaded now
  // lacks a piece that the model's prompt needs; of one that loads later, the requests that use it get that error.
  static absl::StatusOr<std::unique_ptr<TextService>> Create(std::string name, Parts parts,
                                                             const TextServiceOptions& options);

  // `done` is called exactly once: maybe before the function returns, else on a text worker. Past `deadline` the call
  // ends with DEADLINE_EXCEEDED. Errors carry details (fault.h).
  std::shared_ptr<Call> Translate(std::unique_ptr<v1::TranslateRequest> request, absl::Time deadline,
                                  TranslateDone done);
  std::shared_ptr<Call> Encode(std::unique_ptr<v1::EncodeRequest> request, absl::Time deadline, EncodeDone done);

  const std::string& name() const { return name_; }
  const model_loader::Model& model() const { return parts_.languages->model(); }
  const TextServiceOptions& options() const { return options_; }
  const PermitPool& permits() const { return permits_; }

 private:
  class BatchCall;
  class TranslateCall;
  class EncodeCall;
  TextService(std::string name, Parts parts, const TextServiceOptions& options);

  const std::string name_;
  const Parts parts_;
  const TextServiceOptions options_;
  PermitPool permits_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_TEXT_SERVICE_H_
