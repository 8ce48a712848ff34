// The constants of each family: a checkpoint's configuration as Koine's. The maths is FORMAT.md's; what differs between
// families is data here (and names in hf_names).
#ifndef KOINE_MODEL_LOADER_IMPORTER_FAMILIES_H_
#define KOINE_MODEL_LOADER_IMPORTER_FAMILIES_H_

#include <string>

#include "model_loader/format/config.h"
#include "model_loader/importer/hf_config.h"
#include "model_loader/importer/hf_names.h"

namespace koine::model_loader {

// "NLLB", for people. `config` has the tokenizer and the prompt, by which M2M-100 and NLLB, mBART-25 and mBART-50
// differ.
std::string FamilyTitle(const HfConfig& hf, const ModelConfig& config);
HfNaming NamingOf(HfFamily family);

// Architecture and positions. What depends on the tensors (tied_output, output_bias) is left at its default, as is
// everything that the tokenizer and the settings rule. `longest` is a length that computed positions must reach
// (M2M-100's grow on demand).
ModelConfig ArchitectureOf(const HfConfig& config, int64_t longest);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_FAMILIES_H_
