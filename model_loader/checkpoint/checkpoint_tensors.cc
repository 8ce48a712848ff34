#include "model_loader/checkpoint/checkpoint_tensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/checkpoint/shard_index.h"
#include "model_loader/safetensors/looks_like.h"
#include "model_loader/safetensors/strict_json.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

// An index of a model of 10,000 tensors has 1 MB.
constexpr uintmax_t kMaxIndexBytes = uintmax_t{64} << 20;

constexpr char kGiveInstead[] =
    "give the Hugging Face folder that it was made from (config.json with model.safetensors or pytorch_model.bin)";

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string FirstBytes(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  std::ifstream stream(path, std::ios::binary);
  std::array<char, 512> buffer;
  stream.read(buffer.data(), buffer.size());
  return std::string(buffer.data(), static_cast<size_t>(stream.gcount()));
}

// A CTranslate2 model.bin begins with its version (2 to 6 so far), and the name of its specification with its length.
bool LooksLikeCTranslate2(std::string_view bytes) {
  if (bytes.size() < 8) return false;
  const auto byte = [bytes](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const bool version = byte(0) >= 1 && byte(0) <= 16 && byte(1) == 0 && byte(2) == 0 && byte(3) == 0;
  const size_t length = byte(4) | static_cast<size_t>(byte(5)) << 8;
  if (!version || length < 2 || length > 64 || bytes.size() < 6 + length) return false;
  return bytes.substr(6, length).find("Spec") != std::string_view::npos;
}

std::string DescribeFile(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::string bytes = FirstBytes(path);
  if (absl::EndsWith(name, ".argosmodel")) return absl::StrCat("an Argos Translate package: ", kGiveInstead);
  if (LooksLikeCTranslate2(bytes)) return absl::StrCat("a CTranslate2 model: ", kGiveInstead);
  if (absl::StartsWith(bytes, "GGUF")) return absl::StrCat("a GGUF file: ", kGiveInstead);
  if (absl::EndsWith(name, ".onnx")) return absl::StrCat("an ONNX model: ", kGiveInstead);
  return "";
}

ElementType FromDType(kernels::DType type) {
  switch (type) {
    case kernels::DType::kF32:
      return ElementType::kF32;
    case kernels::DType::kF16:
      return ElementType::kF16;
    case kernels::DType::kBF16:
      return ElementType::kBF16;
    case kernels::DType::kI8:
      return ElementType::kI8;
    case kernels::DType::kI32:
      return ElementType::kI32;
  }
  return ElementType::kOther;
}

ElementType FromForeign(std::string_view name) {
  for (const ElementType type :
       {ElementType::kF64, ElementType::kI64, ElementType::kI16, ElementType::kU8, ElementType::kBool}) {
    if (name == Name(type)) return type;
  }
  return ElementType::kOther;
}

CheckpointTensor Contiguous(ElementType type, const std::vector<int64_t>& shape, absl::Span<const uint8_t> data) {
  CheckpointTensor tensor;
  tensor.type = type;
  tensor.shape = shape;
  tensor.strides.resize(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    tensor.strides[d] = stride;
    // Shapes with a 0 may overflow here; such a tensor has no elements to reach.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[d], 1), &stride)) stride = 0;
  }
  tensor.storage = data;
  return tensor;
}

// "model-00001-of-00002.safetensors" -> "model-"
std::string ShardPrefix(const std::string& file) { return file.substr(0, file.find('-') + 1); }

}  // namespace

std::string DescribeForeignModel(const std::string& path) {
  std::error_code error;
  const fs::path folder(path);
  if (!fs::is_directory(folder, error)) return DescribeFile(folder);
  // An Argos package, unpacked: metadata.json beside the folder of a CTranslate2 model.
  if (Exists(folder / "metadata.json") && Exists(folder / "model" / "model.bin")) {
    return absl::StrCat("an Argos Translate package: ", kGiveInstead);
  }
  if (Exists(folder / "model.bin")) {
    if (LooksLikeCTranslate2(FirstBytes(folder / "model.bin")) || Exists(folder / "shared_vocabulary.json") ||
        Exists(folder / "shared_vocabulary.txt") || Exists(folder / "source_vocabulary.json") ||
        Exists(folder / "source_vocabulary.txt")) {
      return absl::StrCat("a CTranslate2 model: ", kGiveInstead);
    }
  }
  if (Exists(folder / "model.json") && Exists(folder / "shared.safetensors")) {
    return "a Koine model already: it needs no import";
  }
  if (Exists(folder / "adapter_config.json")) {
    return "a PEFT adapter: add it to a model with koine-model add-adapter";
  }
  static constexpr std::pair<const char*, const char*> kNames[] = {
      {"tf_model.h5", "TensorFlow weights"},       {"tf_model.h5.index.json", "TensorFlow weights"},
      {"model.ckpt.index", "TensorFlow weights"},  {"flax_model.msgpack", "Flax weights"},
      {"rust_model.ot", "rust-bert weights"},      {"model.npz", "Marian weights"},
      {"consolidated.00.pth", "training weights"}, {"model.onnx", "an ONNX model"}};
  for (const auto& [known, what] : kNames) {
    if (Exists(folder / known)) {
      return absl::StrCat(what, " only (", known,
                          "): load the model and save it with save_pretrained, which writes "
                          "model.safetensors");
    }
  }
  // fairseq's dictionaries lie beside its model.pt or checkpoint_best.pt.
  int64_t looked_at = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && looked_at < 1000; it.increment(error)) {
    ++looked_at;
    const std::string file = DescribeFile(it->path());
    if (!file.empty()) return file;
    const std::string name = it->path().filename().string();
    if (absl::StartsWith(name, "dict.") && absl::EndsWith(name, ".txt")) {
      return absl::StrCat("a fairseq checkpoint: ", kGiveInstead);
    }
  }
  return "";
}

absl::Status CheckpointTensors::AddFile(const std::string& path,
                                        std::map<std::string, CheckpointTensor, std::less<>>* found) {
  if (absl::EndsWith(path, ".safetensors")) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path, ForeignTypes::kList);
    if (!file.ok()) return file.status();
    for (const auto& [name, view] : (*file)->tensors()) {
      found->emplace(name, Contiguous(FromDType(view.dtype), view.shape, view.data));
    }
    for (const auto& [name, view] : (*file)->foreign_tensors()) {
      found->emplace(name, Contiguous(FromForeign(view.dtype), view.shape, view.data));
    }
    safetensors_.push_back(*std::move(file));
  } else {
    absl::StatusOr<std::unique_ptr<TorchFile>> file = TorchFile::Open(path);
    if (!file.ok()) return file.status();
    for (const auto& [name, tensor] : (*file)->tensors()) found->emplace(name, tensor);
    torch_.push_back(*std::move(file));
  }
  files_.push_back(path);
  return absl::OkStatus();
}

absl::Status CheckpointTensors::OpenShards(const std::string& folder, const std::string& index_name) {
  const fs::path index_path = fs::path(folder) / index_name;
  std::error_code error;
  const uintmax_t size = fs::file_size(index_path, error);
  if (error) return absl::NotFoundError(absl::StrCat(index_path.string(), ": ", error.message()));
  if (size > kMaxIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path.string(), ": ", size, " bytes; at most ", kMaxIndexBytes, " are allowed"));
  }
  std::ifstream stream(index_path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::NotFoundError(absl::StrCat(index_path.string(), ": cannot be read"));
  const absl::StatusOr<ShardIndex> index = ParseShardIndex(text.str(), index_path.string());
  if (!index.ok()) return index.status();

  std::vector<std::string> missing;
  const std::string extension = index_name.find(".safetensors") != std::string::npos ? ".safetensors" : ".bin";
  for (const std::string& file : index->files) {
    if (!absl::EndsWith(file, extension)) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path.string(), ": names \"", Printable(file), "\", which is no ", extension, " file"));
    }
    if (!Exists(fs::path(folder) / file)) missing.push_back(file);
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat(folder, ": ", index_name, " names ", index->files.size(), " shards, but ",
                                            absl::StrJoin(missing, ", "), missing.size() == 1 ? " is" : " are",
                                            " missing"));
  }
  std::map<std::string, std::map<std::string, CheckpointTensor, std::less<>>, std::less<>> shards;
  for (const std::string& file : index->files) {
    absl::Status status = AddFile((fs::path(folder) / file).string(), &shards[file]);
    if (!status.ok()) return status;
  }
  std::vector<std::string> faults;
  constexpr size_t kMaxFaults = 20;
  size_t fault_count = 0;
  for (const auto& [name, file] : index->weight_map) {
    auto& shard = shards[file];
    const auto found = shard.find(name);
    if (found != shard.end()) {
      tensors_.emplace(name, std::move(found->second));
      shard.erase(found);
      continue;
    }
    std::string elsewhere;
    for (const auto& [other, tensors] : shards) {
      if (tensors.count(name) != 0) elsewhere = other;
    }
    if (++fault_count <= kMaxFaults) {
      faults.push_back(absl::StrCat("\"", Printable(name), "\" is not in ", file,
                                    elsewhere.empty() ? "" : absl::StrCat(" but in ", elsewhere)));
    }
  }
  if (fault_count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path.string(), ": tensors are not where it says: ", absl::StrJoin(faults, "; "),
                     fault_count > kMaxFaults ? absl::StrCat("; and ", fault_count - kMaxFaults, " more") : ""));
  }
  for (const auto& [file, tensors] : shards) {
    for (const auto& [name, tensor] : tensors) {
      warnings_.push_back(
          absl::StrCat(file, ": tensor \"", Printable(name), "\" is ignored: ", index_name, " does not name it"));
    }
  }
  // Shards of the same make that nobody asked for.
  const std::string prefix = ShardPrefix(index->files.front());
  std::vector<std::string> extra;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename().string();
    if (!prefix.empty() && absl::StartsWith(file, prefix) && absl::EndsWith(file, extension) &&
        !std::binary_search(index->files.begin(), index->files.end(), file)) {
      extra.push_back(file);
    }
  }
  std::sort(extra.begin(), extra.end());
  for (const std::string& file : extra) {
    warnings_.push_back(absl::StrCat(Printable(file), " is ignored: ", index_name, " does not name it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointTensors>> CheckpointTensors::Open(const std::string& folder,
                                                                           CheckpointKind kind) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    const std::string what = DescribeForeignModel(folder);
    if (!what.empty()) return absl::InvalidArgumentError(absl::StrCat(folder, ": ", what));
    return Exists(folder)
               ? absl::InvalidArgumentError(absl::StrCat(folder, ": not a folder; give the checkpoint's folder"))
               : absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  }
  const std::vector<std::string> forms =
      kind == CheckpointKind::kModel ? std::vector<std::string>{"model.safetensors", "model.safetensors.index.json",
                                                                "pytorch_model.bin", "pytorch_model.bin.index.json"}
                                     : std::vector<std::string>{"adapter_model.safetensors", "adapter_model.bin"};
  std::vector<std::string> present;
  for (const std::string& form : forms) {
    if (Exists(fs::path(folder) / form)) present.push_back(form);
  }
  if (present.empty()) {
    const std::string what = kind == CheckpointKind::kModel ? DescribeForeignModel(folder) : "";
    if (!what.empty()) return absl::InvalidArgumentError(absl::StrCat(folder, ": ", what));
    return absl::NotFoundError(
        absl::StrCat(folder, ": no weights; one of ", absl::StrJoin(forms, ", "), " is expected"));
  }
  std::unique_ptr<CheckpointTensors> checkpoint(new CheckpointTensors);
  const std::string& form = present.front();
  absl::Status status = absl::EndsWith(form, ".index.json")
                            ? checkpoint->OpenShards(folder, form)
                            : checkpoint->AddFile((fs::path(folder) / form).string(), &checkpoint->tensors_);
  if (!status.ok()) return status;
  for (size_t i = 1; i < present.size(); ++i) {
    checkpoint->warnings_.push_back(absl::StrCat(present[i], " is ignored: ", form, " is read"));
  }
  return checkpoint;
}

const CheckpointTensor* CheckpointTensors::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status CheckpointTensors::VerifyChecksums() const {
  for (const auto& file : torch_) {
    absl::Status status = file->VerifyChecksums();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace koine::model_loader
