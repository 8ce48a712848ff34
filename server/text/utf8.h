// The little that the server itself must know about text: is it UTF-8, how long is it, is it blank.
#ifndef KOINE_SERVER_TEXT_UTF8_H_
#define KOINE_SERVER_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <google/protobuf/message.h>

#include "absl/strings/string_view.h"

namespace koine::server {

// Code points of `text`, or nothing if it is not well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no
// surrogates, nothing above U+10FFFF). NUL is a character like any other.
std::optional<int64_t> CountCodePoints(absl::string_view text);
inline bool IsUtf8(absl::string_view text) { return CountCodePoints(text).has_value(); }

// True if `text` is empty or holds nothing but Unicode white space (property White_Space). REQUIRES valid UTF-8.
bool IsBlank(absl::string_view text);

// `text` fit for an error message: at most `max_bytes`, cut between characters and marked with "...", control
// characters and bytes that are not UTF-8 replaced by '?'.
std::string ForMessage(absl::string_view text, size_t max_bytes = 200);

// Path of the first `string` field (in field order, depth first) that is not UTF-8: "items[3].text"; nothing if all
// are. What a failed parse leaves behind may be asked: the parser stores a text before it checks it.
std::optional<std::string> FindInvalidUtf8(const google::protobuf::Message& message);

}  // namespace koine::server

#endif  // KOINE_SERVER_TEXT_UTF8_H_
