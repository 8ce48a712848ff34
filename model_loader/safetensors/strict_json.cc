#include "model_loader/safetensors/strict_json.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace koine::model_loader {
namespace {

using nlohmann::json;

// Builds the value while it is read. Values hang in their parents from the start, so that only pointers are kept.
class Builder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    if (open_.back()->contains(value)) return Fail(absl::StrCat("key \"", Printable(value), "\" occurs twice"));
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    return Fail(JsonFault(position, error.what()));
  }

  const std::string& fault() const { return fault_; }
  json TakeRoot() { return std::move(root_); }

 private:
  bool Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  json* Insert(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    json& place = parent[key_];
    place = std::move(value);
    return &place;
  }
  bool Put(json value) {
    Insert(std::move(value));
    return true;
  }
  // An open container's address is stable: nothing is added to its parent before it is closed.
  bool Open(json value) {
    if (open_.size() >= kMaxJsonDepth) return Fail(absl::StrCat("nested deeper than ", kMaxJsonDepth, " levels"));
    open_.push_back(Insert(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;
  std::string key_;
  std::string fault_;
};

}  // namespace

std::string Printable(std::string_view bytes) {
  constexpr std::size_t kMax = 120;
  if (bytes.size() <= kMax) return absl::CHexEscape(Absl(bytes));
  return absl::StrCat(absl::CHexEscape(Absl(bytes.substr(0, kMax))), "...");
}

std::string JsonFault(std::size_t position, std::string_view what) {
  // nlohmann: "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ... - why; ..."
  const std::size_t bracket = what.find("] ");
  if (bracket != std::string_view::npos) what.remove_prefix(bracket + 2);
  return absl::StrCat("not valid JSON at byte ", position, ": ", Printable(what));
}

absl::StatusOr<json> ParseStrictJson(std::string_view text) {
  Builder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.fault().empty() ? "not valid JSON" : builder.fault());
  }
  return builder.TakeRoot();
}

absl::StatusOr<std::string> ReadJsonText(const std::string& path, std::uintmax_t most) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (size > most) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes, more than the ", most, " allowed"));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text.str();
}

}  // namespace koine::model_loader
