// SentencePiece behind a plain C++ face, without Abseil and without linking it.
//
// Why not link: Debian's libsentencepiece exports its own copy of protobuf-lite 3.14 (about 1,600 symbols of namespace
// google::protobuf). In a process that also has Debian's libprotobuf 3.21, as every gRPC server has, one of the two
// binds to the other's functions, and the process dies before main(): "This program was compiled against version 3.14.0
// ...", or a plain crash, depending on the link order. So the library is loaded with RTLD_LOCAL | RTLD_DEEPBIND: nobody
// sees its symbols, and it sees its own first. Only four of its functions have to be looked up by name; the rest of
// SentencePieceProcessor is virtual.
#ifndef KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_BRIDGE_H_
#define KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_BRIDGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace koine::model_loader {

// A loaded model. Immutable; any thread. Functions that can fail return false and fill *error.
class SentencePieceBridge {
 public:
  // REQUIRES bytes that ValidateSentencePiece returned: the library itself trusts what it reads. Null on failure, with
  // *broken_library true if the library could not be loaded at all.
  static std::unique_ptr<SentencePieceBridge> Load(std::string_view bytes, std::string* error, bool* broken_library);
  ~SentencePieceBridge();
  SentencePieceBridge(const SentencePieceBridge&) = delete;
  SentencePieceBridge& operator=(const SentencePieceBridge&) = delete;

  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;
  bool Decode(const std::vector<int32_t>& ids, std::string* text, std::string* error) const;
  // The same in pieces: an unknown one is the run of characters it stands for. Decoding gives pieces that the model
  // does not have as they are.
  bool EncodePieces(std::string_view text, std::vector<std::string>* pieces, std::string* error) const;
  bool DecodePieces(const std::vector<std::string>& pieces, std::string* text, std::string* error) const;
  int32_t size() const;
  int32_t unknown_id() const;
  // The unknown id if there is no such piece.
  int32_t PieceToId(std::string_view piece) const;
  // REQUIRES 0 <= id < size().
  std::string_view IdToPiece(int32_t id) const;
  bool IsControl(int32_t id) const;
  bool IsByte(int32_t id) const;

 private:
  struct Impl;
  explicit SentencePieceBridge(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_TOKENIZER_SENTENCEPIECE_BRIDGE_H_
