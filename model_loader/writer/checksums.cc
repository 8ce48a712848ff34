#include "model_loader/writer/checksums.h"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/writer/model_writer.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;

using Sums = std::map<std::string, std::string>;  // hexadecimal digits by path below the folder

absl::StatusOr<std::string> Sha256(const fs::path& path, const std::function<absl::Status()>& step) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a regular file"));
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::UnknownError(absl::StrCat(path.string(), ": cannot be read"));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool fine = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  std::vector<char> piece(1 << 20);
  while (fine && stream) {
    if (step) {
      if (absl::Status status = step(); !status.ok()) return status;
    }
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    fine = EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(stream.gcount())) == 1;
  }
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  fine = fine && stream.eof() &&
         EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &size) == 1;
  if (!fine) return absl::UnknownError(absl::StrCat(path.string(), ": cannot be read"));
  digest.resize(size);
  return absl::BytesToHexString(digest);
}

// Paths of the files that a list has, below `folder`, of those below `folder`/`part`.
absl::StatusOr<std::vector<std::string>> Files(const fs::path& folder, const std::string& part) {
  std::vector<std::string> files;
  std::error_code error;
  const fs::path start = part.empty() ? folder : folder / part;
  fs::recursive_directory_iterator it(start, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.front() == '.') {
      it.disable_recursion_pending();
      continue;
    }
    const std::string relative = it->path().lexically_relative(folder).string();
    const bool beside = relative == kChecksumFile || relative == "samples.json" || it->path().extension() == ".md";
    if (!it->is_directory(error) && !beside) files.push_back(relative);
  }
  if (error) return absl::UnknownError(absl::StrCat(start.string(), ": ", error.message()));
  return files;
}

absl::Status AddSums(const fs::path& folder, const std::string& part, const std::function<absl::Status()>& step,
                     Sums& sums) {
  const absl::StatusOr<std::vector<std::string>> files = Files(folder, part);
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    absl::StatusOr<std::string> sum = Sha256(folder / file, step);
    if (!sum.ok()) return sum.status();
    sums[file] = *std::move(sum);
  }
  return absl::OkStatus();
}

absl::Status Write(const fs::path& folder, const Sums& sums) {
  std::string text;
  for (const auto& [file, sum] : sums) absl::StrAppend(&text, sum, "  ", file, "\n");
  return WriteSmallFile((folder / kChecksumFile).string(), text);
}

// What stands in the list; empty where there is none.
absl::StatusOr<Sums> Read(const fs::path& folder, bool* present) {
  Sums sums;
  const std::string path = (folder / kChecksumFile).string();
  std::error_code error;
  *present = fs::exists(path, error);
  if (!*present) return sums;
  const absl::StatusOr<std::string> text = ReadJsonText(path);
  if (!text.ok()) return text.status();
  if (text->empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": lists no file"));
  std::istringstream stream(*text);
  std::string line;
  for (int64_t number = 1; std::getline(stream, line); ++number) {
    constexpr size_t kDigits = 64;  // SHA-256: 256 bits, 4 a digit
    // Two blanks, or a blank and the star of binary mode.
    const bool shaped = line.size() > kDigits + 2 &&
                        std::all_of(line.begin(), line.begin() + kDigits,
                                    [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }) &&
                        line[kDigits] == ' ' && (line[kDigits + 1] == ' ' || line[kDigits + 1] == '*');
    const fs::path file = shaped ? fs::path(line.substr(kDigits + 2)) : fs::path();
    // Nothing outside the folder is read.
    if (!shaped || file.is_absolute() || file.lexically_normal() != file || *file.begin() == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": line ", number, " is no checksum and file of this folder: ", Printable(line)));
    }
    sums[file.string()] = absl::AsciiStrToLower(line.substr(0, kDigits));
  }
  return sums;
}

}  // namespace

absl::Status WriteChecksums(const std::string& folder, const std::function<absl::Status()>& step) {
  Sums sums;
  if (absl::Status status = AddSums(folder, "", step, sums); !status.ok()) return status;
  return Write(folder, sums);
}

absl::Status AddChecksums(const std::string& folder, const std::string& part) {
  // Another process may add files at the same time.
  const FolderLock lock(folder);
  bool present = false;
  absl::StatusOr<Sums> sums = Read(folder, &present);
  if (!sums.ok()) return sums.status();
  if (!present) return absl::OkStatus();
  if (absl::Status status = AddSums(folder, part, nullptr, *sums); !status.ok()) return status;
  return Write(folder, *sums);
}

absl::StatusOr<ChecksumReport> CheckChecksums(const std::string& folder) {
  ChecksumReport report;
  const absl::StatusOr<Sums> sums = Read(folder, &report.present);
  if (!sums.ok()) return sums.status();
  if (!report.present) return report;
  const absl::StatusOr<std::vector<std::string>> files = Files(folder, "");
  if (!files.ok()) return files.status();
  for (const std::string& file : *files) {
    if (sums->count(file) == 0) report.unknown.push_back(file);
  }
  report.files = static_cast<int64_t>(sums->size());
  for (const auto& [file, sum] : *sums) {
    std::error_code error;
    if (!fs::exists(fs::path(folder) / file, error)) {
      report.faults.push_back(absl::StrCat(file, ": missing"));
      continue;
    }
    const absl::StatusOr<std::string> now = Sha256(fs::path(folder) / file, nullptr);
    if (absl::IsInvalidArgument(now.status())) {
      report.faults.push_back(absl::StrCat(file, ": not a regular file"));
      continue;
    }
    if (!now.ok()) return now.status();
    if (*now != sum) report.faults.push_back(absl::StrCat(file, ": differs from ", kChecksumFile));
  }
  return report;
}

}  // namespace koine::model_loader
