// The only file that includes SentencePiece's header, which opens namespace `absl`: no Abseil header may be included.
#include "model_loader/tokenizer/sentencepiece_bridge.h"

#include <dlfcn.h>
#include <gnu/lib-names.h>
#include <sentencepiece_processor.h>

#include <cstddef>
#include <exception>
#include <new>
#include <utility>

namespace koine::model_loader {
namespace {

using sentencepiece::SentencePieceProcessor;
using sentencepiece::util::Status;

static_assert(sizeof(int) == sizeof(int32_t));

constexpr char kLibrary[] = "libsentencepiece.so.0";

// The functions of the library that are not virtual, by their mangled names.
struct Library {
  void (*construct_processor)(void*) = nullptr;
  void (*destroy_status)(void*) = nullptr;
  const char* (*status_message)(const void*) = nullptr;
  std::string error;  // not empty: the library is not usable
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KOINE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define KOINE_SANITIZED 1
#endif
#endif

// The sanitizers' dlopen refuses RTLD_DEEPBIND, since a library that binds past them to libc's malloc may mix two
// heaps. This one allocates with libstdc++'s operator new alone, which calls the sanitizer's malloc, so the heap stays
// one, and libc's own dlopen may be called. See also __asan_default_options below.
void* OpenDeep(const char* name) {
  using Open = void* (*)(const char*, int);
  Open open = &dlopen;
#ifdef KOINE_SANITIZED
  void* libc = dlopen(LIBC_SO, RTLD_LAZY | RTLD_NOLOAD);
  void* plain = libc != nullptr ? dlsym(libc, "dlopen") : nullptr;
  if (plain != nullptr) open = reinterpret_cast<Open>(plain);
#endif
  return open(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
}

Library LoadLibrary() {
  Library library;
  void* handle = OpenDeep(kLibrary);
  if (handle == nullptr) {
    const char* why = dlerror();
    library.error = std::string("cannot load ") + kLibrary + ": " + (why != nullptr ? why : "unknown error");
    return library;
  }
  const auto find = [&](const char* name, auto& function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) {
      if (library.error.empty()) library.error = std::string(kLibrary) + " has no symbol " + name;
      return;
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  void (*set_min_log_level)(int) = nullptr;
  find("_ZN13sentencepiece22SentencePieceProcessorC1Ev", library.construct_processor);
  find("_ZN13sentencepiece4util6StatusD1Ev", library.destroy_status);
  find("_ZNK13sentencepiece4util6Status13error_messageEv", library.status_message);
  find("_ZN13sentencepiece7logging14SetMinLogLevelEi", set_min_log_level);
  // 3 is FATAL: errors come back as Status, so nothing else needs to reach standard error.
  if (library.error.empty()) set_min_log_level(3);
  return library;
}

// Never unloaded. Initialised once, by whichever thread comes first.
const Library& TheLibrary() {
  static const Library& library = *new Library(LoadLibrary());
  return library;
}

}  // namespace
}  // namespace koine::model_loader

// Status's destructor is called by compiler-made code wherever the library returns one; as the library is not linked,
// its name is defined here and forwards to the loaded function.
extern "C" {
__attribute__((visibility("hidden"))) void KoineDestroySentencePieceStatus(void* status) __asm__(
    "_ZN13sentencepiece4util6StatusD1Ev");
void KoineDestroySentencePieceStatus(void* status) { koine::model_loader::TheLibrary().destroy_status(status); }

#ifdef KOINE_SANITIZED
// In the library, operator new is libstdc++'s (so the block counts as malloc's), while libstdc++'s sized delete calls
// the sanitizer's operator delete: one heap, but ASan would call every such pair a mismatch.
const char* __asan_default_options();
const char* __asan_default_options() { return "alloc_dealloc_mismatch=0"; }
#endif
}

namespace koine::model_loader {

struct SentencePieceBridge::Impl {
  alignas(SentencePieceProcessor) std::byte storage[sizeof(SentencePieceProcessor)];
  SentencePieceProcessor* processor = nullptr;

  Impl() {
    TheLibrary().construct_processor(storage);
    processor = std::launder(reinterpret_cast<SentencePieceProcessor*>(storage));
  }
  ~Impl() { processor->~SentencePieceProcessor(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

namespace {

// Runs one call of the library. It throws where its trie builder does, and returns a Status otherwise.
template <typename Call>
bool Run(Call call, std::string* error) {
  try {
    const Status status = call();
    if (status.ok()) return true;
    *error = TheLibrary().status_message(&status);
  } catch (const std::exception& exception) {
    *error = exception.what();
  } catch (...) {
    *error = "unknown exception";
  }
  return false;
}

}  // namespace

SentencePieceBridge::SentencePieceBridge(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SentencePieceBridge::~SentencePieceBridge() = default;

std::unique_ptr<SentencePieceBridge> SentencePieceBridge::Load(std::string_view bytes, std::string* error,
                                                               bool* broken_library) {
  *broken_library = !TheLibrary().error.empty();
  if (*broken_library) {
    *error = TheLibrary().error;
    return nullptr;
  }
  auto impl = std::make_unique<Impl>();
  if (!Run([&] { return impl->processor->LoadFromSerializedProto(bytes); }, error)) return nullptr;
  return std::unique_ptr<SentencePieceBridge>(new SentencePieceBridge(std::move(impl)));
}

bool SentencePieceBridge::Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const {
  const SentencePieceProcessor& processor = *impl_->processor;
  return Run([&] { return processor.Encode(text, ids); }, error);
}

bool SentencePieceBridge::Decode(const std::vector<int32_t>& ids, std::string* text, std::string* error) const {
  const SentencePieceProcessor& processor = *impl_->processor;
  return Run([&] { return processor.Decode(ids, text); }, error);
}

bool SentencePieceBridge::EncodePieces(std::string_view text, std::vector<std::string>* pieces,
                                       std::string* error) const {
  const SentencePieceProcessor& processor = *impl_->processor;
  return Run([&] { return processor.Encode(text, pieces); }, error);
}

bool SentencePieceBridge::DecodePieces(const std::vector<std::string>& pieces, std::string* text,
                                       std::string* error) const {
  const SentencePieceProcessor& processor = *impl_->processor;
  return Run([&] { return processor.Decode(pieces, text); }, error);
}

int32_t SentencePieceBridge::size() const { return impl_->processor->GetPieceSize(); }
int32_t SentencePieceBridge::unknown_id() const { return impl_->processor->unk_id(); }
int32_t SentencePieceBridge::PieceToId(std::string_view piece) const { return impl_->processor->PieceToId(piece); }
std::string_view SentencePieceBridge::IdToPiece(int32_t id) const { return impl_->processor->IdToPiece(id); }
bool SentencePieceBridge::IsControl(int32_t id) const { return impl_->processor->IsControl(id); }
bool SentencePieceBridge::IsByte(int32_t id) const { return impl_->processor->IsByte(id); }

}  // namespace koine::model_loader
