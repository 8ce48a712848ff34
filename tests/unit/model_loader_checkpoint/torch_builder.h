// Writes pickles and zip archives as torch.save does, or wrong in any place.
#ifndef KOINE_TESTS_UNIT_MODEL_LOADER_CHECKPOINT_TORCH_BUILDER_H_
#define KOINE_TESTS_UNIT_MODEL_LOADER_CHECKPOINT_TORCH_BUILDER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace koine::model_loader {

// Little-endian.
std::string Bytes(uint64_t value, int size);

// Pieces of a pickle of protocol 2.
std::string PickleString(std::string_view text);
std::string PickleInt(int64_t value);  // LONG1 of 8 bytes
std::string PickleTuple(const std::vector<std::string>& items);
std::string PickleGlobal(std::string_view module, std::string_view name);
struct PickleTensor {
  std::string storage = "FloatStorage";
  std::string key = "0";
  int64_t storage_elements = 6;
  int64_t offset = 0;
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {3, 1};
};
std::string Pickled(const PickleTensor& tensor);
// A whole pickle: the dictionary of these entries, {name, pickled value}.
std::string PickleDict(const std::vector<std::pair<std::string, std::string>>& entries);

struct Member {
  std::string name, data;
  uint16_t method = 0, flags = 0;
};
struct ZipOptions {
  bool zip64 = false;  // sizes and places in zip64 fields
  int64_t count = -1;  // what the end record says, if not the truth
  int64_t directory = -1;
};
std::string Zip(const std::vector<Member>& members, const ZipOptions& options = {});

// An archive with this pickle and storages "0", "1", ...
std::string TorchArchive(const std::string& pickle, const std::vector<std::string>& storages,
                         const ZipOptions& options = {});

std::string Floats(const std::vector<float>& values);

}  // namespace koine::model_loader

#endif  // KOINE_TESTS_UNIT_MODEL_LOADER_CHECKPOINT_TORCH_BUILDER_H_
