#include "model_loader/writer/model_writer.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

absl::Status Refused(const fs::path& path, const std::error_code& error) {
  return absl::UnknownError(absl::StrCat(path.string(), ": ", error.message()));
}

absl::Status MakeFolder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? Refused(path, error) : absl::OkStatus();
}

// A message about something that was half written, under the name that it would have got.
absl::Status Renamed(const absl::Status& status, const fs::path& half, const fs::path& path) {
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{half.string(), path.string()}}));
}

}  // namespace

absl::Status WriteSmallFile(const std::string& path, std::string_view bytes) {
  const fs::path half = path + ".part";
  {
    std::ofstream stream(half, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.close();
    if (!stream) {
      std::error_code ignored;
      fs::remove(half, ignored);
      return absl::UnknownError(absl::StrCat(path, ": cannot be written"));
    }
  }
  std::error_code error;
  fs::rename(half, path, error);
  return error ? Refused(path, error) : absl::OkStatus();
}

absl::Status WriteFolder(const std::string& goal, const std::function<absl::Status(const std::string& folder)>& fill) {
  // Without a slash at the end, which would make the file name empty.
  const fs::path path = fs::path(goal).has_filename() ? fs::path(goal) : fs::path(goal).parent_path();
  std::error_code error;
  if (fs::exists(path, error)) return absl::AlreadyExistsError(absl::StrCat(path.string(), " exists already"));
  const fs::path half = path.parent_path() / absl::StrCat(".", path.filename().string(), ".part");
  fs::remove_all(half, error);
  absl::Status status = MakeFolder(half);
  if (status.ok()) status = fill(half.string());
  if (status.ok()) {
    fs::rename(half, path, error);
    if (!error) return absl::OkStatus();
    status = Refused(path, error);
  }
  fs::remove_all(half, error);
  return Renamed(status, half, path);
}

absl::Status WriteTensors(const std::string& path, const SafetensorsWriter& tensors,
                          const std::vector<TensorSpec>& specs) {
  const fs::path half = path + ".part";
  absl::Status status = tensors.Write(half.string());
  if (status.ok()) {
    const auto file = SafetensorsFile::Open(half.string());
    status = file.ok() ? CheckTensors(**file, specs, nullptr) : file.status();
  }
  std::error_code error;
  if (status.ok()) {
    fs::rename(half, path, error);
    return error ? Refused(path, error) : absl::OkStatus();
  }
  fs::remove(half, error);
  return Renamed(status, half, path);
}

absl::Status ModelWriter::WriteShared(const ModelConfig& config, const SafetensorsWriter& tensors) const {
  const fs::path folder(directory_);
  absl::Status status = MakeFolder(folder);
  if (status.ok()) status = WriteTensors((folder / "shared.safetensors").string(), tensors, SharedTensors(config));
  if (status.ok()) status = WriteSmallFile((folder / "model.json").string(), ToJson(config));
  return status;
}

absl::Status ModelWriter::WriteTokenizer(std::string_view model_bytes) const {
  const absl::Status status = MakeFolder(directory_);
  return status.ok() ? WriteSmallFile((fs::path(directory_) / "tokenizer.model").string(), model_bytes) : status;
}

absl::Status ModelWriter::WriteLanguage(const ModelConfig& config, const LanguageConfig& language,
                                        const SafetensorsWriter& tensors, std::string_view tokenizer) const {
  const fs::path languages = fs::path(directory_) / "languages";
  absl::Status status = MakeFolder(languages);
  if (!status.ok()) return status;
  return WriteFolder(languages / language.code, [&](const std::string& name_of_half) {
    const fs::path folder(name_of_half);
    absl::Status written =
        WriteTensors((folder / "language.safetensors").string(), tensors, LanguageTensors(config, language.adapter));
    if (written.ok()) written = WriteSmallFile((folder / "language.json").string(), ToJson(language));
    if (written.ok() && !tokenizer.empty()) written = WriteSmallFile((folder / "tokenizer.model").string(), tokenizer);
    return written;
  });
}

absl::Status ModelWriter::WriteAdapter(const ModelConfig& config, const std::string& code, const std::string& name,
                                       const AdapterConfig& adapter, const SafetensorsWriter& tensors) const {
  const fs::path adapters = fs::path(directory_) / "languages" / code / "adapters";
  absl::Status status = MakeFolder(adapters);
  if (!status.ok()) return status;
  return WriteFolder(adapters / name, [&](const std::string& name_of_half) {
    const fs::path folder(name_of_half);
    absl::Status written =
        WriteTensors((folder / "adapter.safetensors").string(), tensors, AdapterTensors(config, adapter));
    if (written.ok()) written = WriteSmallFile((folder / "adapter.json").string(), ToJson(adapter));
    return written;
  });
}

}  // namespace koine::model_loader
