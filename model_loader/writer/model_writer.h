// Writes model folders in Koine's layout (model_loader/format/FORMAT.md): the one writer of tests, tools and importers.
//
// What is written is checked first against the same tensor table that loading uses, so a folder that was written can be
// read. Every file and folder appears under its name at once: no reader ever sees half of it.
#ifndef KOINE_MODEL_LOADER_WRITER_MODEL_WRITER_H_
#define KOINE_MODEL_LOADER_WRITER_MODEL_WRITER_H_

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

// Lets `fill` write into a folder beside `path` under a dot-name, then renames it: whoever sees the folder sees all of
// it. Removes it if anything fails, exceptions included; what a killed run left is replaced. ALREADY_EXISTS if `path`
// is there, or if another process is writing it at this moment.
absl::Status WriteFolder(const std::string& path, const std::function<absl::Status(const std::string& folder)>& fill);

// While it lives, no other FolderLock of the same model folder does, in any process: for changes that read a file, add
// to it and write it. Waits. Without effect where the folder has no model.json that can be opened.
class FolderLock {
 public:
  explicit FolderLock(const std::string& model_folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int file_;  // -1: none
};

// Writes a small file through a name of its own and a rename.
absl::Status WriteSmallFile(const std::string& path, std::string_view bytes);

// Writes the tensors and holds the file against `specs`, the table that loading uses; leaves nothing if it does not
// fit.
absl::Status WriteTensors(const std::string& path, const SafetensorsWriter& tensors,
                          const std::vector<TensorSpec>& specs);

// Creates (or adds to) one model folder. Not thread-safe. Errors name the file: INVALID_ARGUMENT with all missing,
// unknown and misshaped tensors; ALREADY_EXISTS for a language or adapter that is there; UNKNOWN where the file system
// refuses.
class ModelWriter {
 public:
  explicit ModelWriter(std::string directory) : directory_(std::move(directory)) {}

  // model.json and shared.safetensors; creates the folder.
  absl::Status WriteShared(const ModelConfig& config, const SafetensorsWriter& tensors) const;
  // tokenizer.model of the whole model.
  absl::Status WriteTokenizer(std::string_view model_bytes) const;
  // languages/<code>/; `tokenizer` is empty where the language uses the model's.
  absl::Status WriteLanguage(const ModelConfig& config, const LanguageConfig& language,
                             const SafetensorsWriter& tensors, std::string_view tokenizer) const;
  // languages/<code>/adapters/<name>/.
  absl::Status WriteAdapter(const ModelConfig& config, const std::string& code, const std::string& name,
                            const AdapterConfig& adapter, const SafetensorsWriter& tensors) const;

 private:
  const std::string directory_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_WRITER_MODEL_WRITER_H_
