// A model and everything that serves it.
#ifndef KOINE_SERVER_TEXT_MODEL_HOST_H_
#define KOINE_SERVER_TEXT_MODEL_HOST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model_loader/model/model.h"
#include "server/engine/engine.h"
#include "server/languages/language_store.h"
#include "server/schedule/queue.h"
#include "server/text/text_service.h"

namespace koine::server {

// Members in the order of their dependence: destroyed last to first.
struct ModelHost {
  std::string name;  // what requests call it
  std::shared_ptr<const model_loader::Model> model;
  double load_seconds = 0;
  std::unique_ptr<LanguageStore> languages;  // started
  std::unique_ptr<JobQueue> queue;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TextService> text;
};

// All models of the process, in the order of the command line. Immutable after start-up; any thread.
class ModelHosts {
 public:
  // REQUIRES at least one, with different names.
  explicit ModelHosts(std::vector<std::unique_ptr<ModelHost>> hosts) : hosts_(std::move(hosts)) {}

  // "" is the only model. NOT_FOUND naming the models there are; INVALID_ARGUMENT if "" leaves a choice.
  absl::StatusOr<ModelHost*> Find(absl::string_view name) const;
  absl::Span<const std::unique_ptr<ModelHost>> all() const { return hosts_; }

  // OK if every model's languages are ready, else UNAVAILABLE naming the models whose are not.
  absl::Status Ready() const;

 private:
  std::vector<std::unique_ptr<ModelHost>> hosts_;
};

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_MODEL_HOST_H_
