// Loads whatever tokenizer a configuration describes (the key `tokenizer`, FORMAT.md), whole or cut down to a slice of
// its vocabulary.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_LOAD_TOKENIZER_H_
#define KOINE_MODEL_LOADER_TOKENIZER_LOAD_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model_loader/format/tokenizer_config.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

// Reads config.files from `folder`. Errors (NOT_FOUND, INVALID_ARGUMENT) name the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& folder, const TokenizerConfig& config);

// From the files' bytes, in the order of config.files; what importers and fuzzers use.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const TokenizerConfig& config,
                                                          const std::vector<std::string>& contents);

// For a table that is a slice of the vocabulary: row i is the larger vocabulary's id vocab_ids[i]. The result speaks
// local ids (rows); local_unknown_id must be the row of the unknown piece. Texts are cut into pieces of the slice
// wherever they can be: with a slice that holds every piece the whole tokenizer would have used, the pieces are the
// same. Each call holds a copy of the model in memory (about 4.3 times the file); where many languages share one
// vocabulary and memory matters more than the cut, use SlicedTokenizer over one shared tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSlicedTokenizer(const std::string& folder, const TokenizerConfig& config,
                                                               absl::Span<const int32_t> vocab_ids,
                                                               int32_t local_unknown_id);
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseSlicedTokenizer(const TokenizerConfig& config,
                                                                const std::vector<std::string>& contents,
                                                                absl::Span<const int32_t> vocab_ids,
                                                                int32_t local_unknown_id);

// Renumbers another tokenizer: ids of `base` that vocab_ids does not list become the local unknown id and are counted.
// The base may be shared by any number of slices. Immutable, any thread.
class SlicedTokenizer : public Tokenizer {
 public:
  // INVALID_ARGUMENT: an empty slice, an id twice, negative or over 2^22, local_unknown_id not a row or not the row of
  // the base's unknown piece. Ids at or above base->size() are rows without a piece; a large table may have such.
  static absl::StatusOr<std::unique_ptr<SlicedTokenizer>> Create(std::shared_ptr<const Tokenizer> base,
                                                                 absl::Span<const int32_t> vocab_ids,
                                                                 int32_t local_unknown_id);

  absl::StatusOr<Encoded> Encode(std::string_view text) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override;
  int64_t size() const override { return static_cast<int64_t>(globals_.size()); }
  int32_t unknown_id() const override { return unknown_id_; }
  int32_t PieceToId(std::string_view piece) const override;
  std::string IdToPiece(int32_t id) const override;
  bool IsMarker(int32_t id) const override;
  bool IsByte(int32_t id) const override;

  // The row of an id of the larger vocabulary, or -1.
  int32_t ToLocal(int32_t global_id) const;
  const Tokenizer& base() const { return *base_; }

 private:
  SlicedTokenizer(std::shared_ptr<const Tokenizer> base, absl::Span<const int32_t> vocab_ids, int32_t local_unknown_id);

  const std::shared_ptr<const Tokenizer> base_;
  const std::vector<int32_t> globals_;                  // by row
  std::vector<std::pair<int32_t, int32_t>> by_global_;  // {global id, row}, sorted: 8 bytes a row, whatever base has
  const int32_t unknown_id_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_LOAD_TOKENIZER_H_
