#include "model_loader/writer/model_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
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

// A folder that is being written. The lock on it ends with its process, so that what a killed one left can be taken.
class HalfFolder {
 public:
  explicit HalfFolder(fs::path path) : path_(std::move(path)) {}
  ~HalfFolder() {
    std::error_code ignored;
    if (folder_ >= 0 && !kept_) fs::remove_all(path_, ignored);
    if (folder_ >= 0) close(folder_);
  }
  HalfFolder(const HalfFolder&) = delete;
  HalfFolder& operator=(const HalfFolder&) = delete;

  // Makes it, empty and ours.
  absl::Status Take() {
    constexpr int kTries = 100;  // each lost to a process that has just finished
    for (int i = 0; i < kTries; ++i) {
      if (absl::Status status = MakeFolder(path_); !status.ok()) return status;
      const int folder = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (folder < 0 && errno == ENOENT) continue;
      if (folder < 0) return Refused(path_, std::error_code(errno, std::generic_category()));
      if (flock(folder, LOCK_EX | LOCK_NB) != 0) {
        close(folder);
        return absl::AlreadyExistsError(absl::StrCat(path_.string(), " is being written by another process"));
      }
      // The name may have gone to another folder before the lock was ours.
      struct stat locked = {}, named = {};
      if (fstat(folder, &locked) == 0 && stat(path_.c_str(), &named) == 0 && locked.st_dev == named.st_dev &&
          locked.st_ino == named.st_ino) {
        folder_ = folder;
        return Empty();
      }
      close(folder);
    }
    return absl::AlreadyExistsError(absl::StrCat(path_.string(), " is being written by other processes"));
  }

  // It has got its name: nothing is removed.
  void Keep() { kept_ = true; }
  const fs::path& path() const { return path_; }

 private:
  absl::Status Empty() const {
    std::error_code error;
    for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
      fs::remove_all(it->path(), error);
    }
    return error ? Refused(path_, error) : absl::OkStatus();
  }

  const fs::path path_;
  int folder_ = -1;
  bool kept_ = false;
};

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
  HalfFolder half(path.parent_path() / absl::StrCat(".", path.filename().string(), ".part"));
  absl::Status status = half.Take();
  if (!status.ok()) return Renamed(status, half.path(), path);
  // Whoever had the half folder until now may have finished it.
  if (fs::exists(path, error)) return absl::AlreadyExistsError(absl::StrCat(path.string(), " exists already"));
  status = fill(half.path().string());
  if (!status.ok()) return Renamed(status, half.path(), path);
  fs::rename(half.path(), path, error);
  if (error) return Refused(path, error);
  half.Keep();
  return absl::OkStatus();
}

FolderLock::FolderLock(const std::string& model_folder)
    : file_(open((fs::path(model_folder) / "model.json").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  while (file_ >= 0 && flock(file_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
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
