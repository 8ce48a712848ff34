// Pieces by ids and ids by pieces, as vocab.json, vocab.txt and tokenizer.json list them; private to this folder.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_VOCABULARY_INTERNAL_H_
#define KOINE_MODEL_LOADER_TOKENIZER_VOCABULARY_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model_loader/format/tokenizer_config.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {

// For messages: strings without their quotes.
std::string Show(const nlohmann::json& value);

// Immutable once read. Errors do not name the file.
class Vocabulary {
 public:
  // A JSON object {"piece": id, ...}. Ids are distinct; they may leave holes, but fewer than the pieces + 65,536.
  static absl::StatusOr<Vocabulary> FromJson(const nlohmann::json& object);
  // One piece a line, numbered from 0; "\r\n" is "\n". Empty lines take an id without a piece. Of equal lines the last
  // one names the id, as in the reference implementation.
  static absl::StatusOr<Vocabulary> FromLines(std::string_view text);

  // Adds the markers: their ids must be free, or theirs already.
  absl::Status AddMarkers(const std::map<std::string, int32_t, std::less<>>& markers);

  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }  // highest id + 1
  int32_t Find(std::string_view piece) const;                            // -1 if there is none
  // REQUIRES 0 <= id < size(). "" where nothing has the id.
  const std::string& piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }
  bool is_marker(int32_t id) const { return markers_[static_cast<size_t>(id)]; }
  size_t longest_piece() const { return longest_; }  // bytes

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  absl::Status Add(std::string_view piece, int64_t id);

  std::vector<std::string> pieces_;
  std::vector<bool> markers_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  size_t longest_ = 0;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_VOCABULARY_INTERNAL_H_
