// `koine-model add-adapter`: a PEFT LoRA adapter becomes an adapter of a model's languages.
#ifndef KOINE_MODEL_LOADER_PEFT_ADD_ADAPTER_H_
#define KOINE_MODEL_LOADER_PEFT_ADD_ADAPTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace koine::model_loader {

struct AddAdapterOptions {
  std::string model;                   // folder of the model
  std::vector<std::string> languages;  // codes or aliases
  std::string adapter;  // folder with adapter_config.json and adapter_model.safetensors or adapter_model.bin
  std::string name;     // what requests call it; empty: the adapter folder's name
};

struct AddAdapterReport {
  std::string name;
  std::string base_model;              // what the adapter says that it was trained on; "" where it does not
  std::vector<std::string> languages;  // codes
  int64_t pairs = 0;                   // projections with an update
  int smallest_rank = 0, largest_rank = 0;
  int64_t parameters = 0, bytes = 0;  // of one language's copy
  std::vector<std::string> warnings;
};

// Writes languages/<code>/adapters/<name>/ for every language, in the adapter's own number format, or nothing at all.
// Ranks and alphas of single modules (rank_pattern, alpha_pattern) are kept as they are (FORMAT.md, `pairs`).
// Errors: NOT_FOUND (a folder or file), ALREADY_EXISTS (an adapter of that name), INVALID_ARGUMENT with everything that
// is wrong at once: what the configuration asks for and is not supported, modules that the model does not have, halves
// of pairs, shapes, types, values that are no numbers, unknown languages.
absl::StatusOr<AddAdapterReport> AddPeftAdapter(const AddAdapterOptions& options);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_PEFT_ADD_ADAPTER_H_
