#include "server/text/utf8.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace koine::server {
namespace {

// Length of the well-formed sequence at the start of `text`, or 0. *code_point is set on success.
size_t Sequence(absl::string_view text, uint32_t* code_point) {
  const auto byte = [&text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto follows = [&](size_t i, uint8_t low, uint8_t high) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    *code_point = first;
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    if (!follows(1, 0x80, 0xBF)) return 0;
    *code_point = ((first & 0x1FU) << 6) | (byte(1) & 0x3FU);
    return 2;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    // E0 must not be overlong, ED must not be a surrogate.
    if (!follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) || !follows(2, 0x80, 0xBF)) return 0;
    *code_point = ((first & 0x0FU) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU);
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    // F0 must not be overlong, F4 must not pass U+10FFFF.
    if (!follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) || !follows(2, 0x80, 0xBF) ||
        !follows(3, 0x80, 0xBF)) {
      return 0;
    }
    *code_point = ((first & 0x07U) << 18) | ((byte(1) & 0x3FU) << 12) | ((byte(2) & 0x3FU) << 6) | (byte(3) & 0x3FU);
    return 4;
  }
  return 0;
}

// PropList.txt, White_Space.
bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// DerivedCoreProperties.txt (Unicode 15), Default_Ignorable_Code_Point: nothing to see, nothing to read.
bool IsIgnorable(uint32_t c) {
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0xAD, 0xAD},     {0x34F, 0x34F},   {0x61C, 0x61C},     {0x115F, 0x1160},   {0x17B4, 0x17B5},  {0x180B, 0x180F},
      {0x200B, 0x200F}, {0x202A, 0x202E}, {0x2060, 0x206F},   {0x3164, 0x3164},   {0xFE00, 0xFE0F},  {0xFEFF, 0xFEFF},
      {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFF8}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

std::optional<std::string> FindInField(const google::protobuf::Message& message,
                                       const google::protobuf::FieldDescriptor* field) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const bool is_string = field->type() == FieldDescriptor::TYPE_STRING;
  const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  if (!is_string && !is_message) return std::nullopt;
  std::string scratch;
  if (!field->is_repeated()) {
    if (is_string) {
      if (IsUtf8(reflection->GetStringReference(message, field, &scratch))) return std::nullopt;
      return std::string(field->name());
    }
    const std::optional<std::string> inner = FindInvalidUtf8(reflection->GetMessage(message, field));
    if (!inner) return std::nullopt;
    return absl::StrCat(field->name(), ".", *inner);
  }
  for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
    if (is_string) {
      if (!IsUtf8(reflection->GetRepeatedStringReference(message, field, i, &scratch))) {
        return absl::StrCat(field->name(), "[", i, "]");
      }
    } else if (const auto inner = FindInvalidUtf8(reflection->GetRepeatedMessage(message, field, i))) {
      return absl::StrCat(field->name(), "[", i, "].", *inner);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> CountCodePoints(absl::string_view text) {
  int64_t count = 0;
  while (!text.empty()) {
    // Eight ASCII bytes at once: most texts are mostly that, and 4 MiB must not hold up a callback thread.
    if (text.size() >= 8) {
      uint64_t word;
      std::memcpy(&word, text.data(), sizeof(word));
      if ((word & 0x8080808080808080U) == 0) {
        text.remove_prefix(8);
        count += 8;
        continue;
      }
    }
    uint32_t code_point = 0;
    const size_t length = Sequence(text, &code_point);
    if (length == 0) return std::nullopt;
    text.remove_prefix(length);
    ++count;
  }
  return count;
}

bool IsBlank(absl::string_view text) {
  while (!text.empty()) {
    uint32_t code_point = 0;
    const size_t length = Sequence(text, &code_point);
    if (length == 0 || !(IsWhiteSpace(code_point) || IsIgnorable(code_point))) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ForMessage(absl::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    uint32_t code_point = 0;
    const size_t length = Sequence(text, &code_point);
    if (out.size() + (length == 0 ? 1 : length) > max_bytes) return out + "...";
    const bool control = code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0);
    if (length == 0 || control) {
      out += '?';
    } else {
      out.append(text.data(), length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::optional<std::string> FindInvalidUtf8(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);  // set fields, in the order of their numbers
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (auto found = FindInField(message, field)) return found;
  }
  return std::nullopt;
}

}  // namespace koine::server
