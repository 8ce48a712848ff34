// What a file looks like that is not what its name promises, for people who fetched the wrong thing.
#ifndef KOINE_MODEL_LOADER_SAFETENSORS_LOOKS_LIKE_H_
#define KOINE_MODEL_LOADER_SAFETENSORS_LOOKS_LIKE_H_

#include <string>
#include <string_view>

namespace koine::model_loader {

// "a git-lfs pointer: ...", "a zip archive, ...", "an empty file (0 bytes)", ...; "" if nothing is recognised. Looks at
// the first bytes only.
std::string LooksLike(std::string_view bytes);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_SAFETENSORS_LOOKS_LIKE_H_
