// What tests of whole models share: paths, loaded models, jobs, and an engine that runs them.
#ifndef KOINE_TESTS_SUPPORT_HARNESS_H_
#define KOINE_TESTS_SUPPORT_HARNESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "model_loader/model/model.h"
#include "server/engine/engine.h"
#include "server/languages/language_store.h"
#include "server/schedule/queue.h"

namespace koine::testing {

// Of a file in the source tree.
std::string SourcePath(const std::string& relative);

// The model in a folder of the source tree; loaded once per precision. Fails the test (and returns null) on errors.
std::shared_ptr<const model_loader::Model> LoadModel(const std::string& relative, kernels::Precision precision);

// A started store of that model's languages, all loaded; one for each folder, alive to the end of the program.
server::LanguageStore* LoadLanguages(const std::string& relative, kernels::Precision precision);

// Prompt rules of models without tags: the text's pieces and the end mark.
std::vector<int32_t> SourceIds(const model_loader::Model& model, const std::string& language, const std::string& text);

server::JobPtr TranslateJob(const model_loader::Model& model, const std::string& source, const std::string& target,
                            const std::string& text, int64_t max_tokens = 0, int beam = 1);
server::JobPtr EncodeJob(const model_loader::Model& model, const std::string& language, const std::string& text);

// A queue and its engine, with every step trace kept.
class EngineHarness {
 public:
  EngineHarness(std::shared_ptr<const model_loader::Model> model, const server::EngineOptions& options,
                const server::QueueLimits& limits = {});
  ~EngineHarness();

  // Submits all at once and waits for every answer, in order.
  std::vector<server::JobResult> Run(const std::vector<server::JobPtr>& jobs);

  server::JobQueue& queue() { return queue_; }
  server::Engine& engine() { return engine_; }
  std::vector<server::StepTrace> traces() const;
  void ClearTraces();

 private:
  mutable absl::Mutex mutex_;
  std::vector<server::StepTrace> traces_;
  server::JobQueue queue_;
  server::Engine engine_;
};

}  // namespace koine::testing

#endif  // KOINE_TESTS_SUPPORT_HARNESS_H_
