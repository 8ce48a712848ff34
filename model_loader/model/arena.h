// Named anonymous memory that holds packed parameters: private to model_loader/model.
#ifndef KOINE_MODEL_LOADER_MODEL_ARENA_H_
#define KOINE_MODEL_LOADER_MODEL_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matmul/matmul.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

// One memfd mapping, read-only once sealed. Its pages show up in /proc/<pid>/smaps under the name.
class Arena {
 public:
  static absl::StatusOr<std::unique_ptr<Arena>> Create(const std::string& name, size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  // Whole pages.
  size_t bytes() const { return bytes_; }
  static int64_t WholePages(size_t bytes);  // of an arena for `bytes`
  // Bytes of pages that are in memory now, as the kernel says (mincore); bytes() if it does not say.
  size_t ResidentBytes() const;
  absl::Status Seal();
  // FNV-1a over 64-bit words.
  uint64_t Checksum() const;

 private:
  Arena() = default;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Collects what one owner's arena shall hold, then allocates once, fills and binds the views. Two passes, so that the
// size is known (and checked) before any allocation. Not thread-safe.
class ArenaBuilder {
 public:
  // `file` must outlive Build.
  ArenaBuilder(const SafetensorsFile& file, kernels::Precision precision) : file_(file), precision_(precision) {}

  // Tensors of equal width stacked by rows into one packed matrix. REQUIRES that CheckTensors accepted the names.
  absl::Status Matrix(const std::vector<std::string>& names, kernels::PackedMatrix* out);
  // Tensors concatenated into one f32 vector.
  void Vector(const std::vector<std::string>& names, const float** out);
  // A [rows, width] table for lookups only, row-major in the builder's precision.
  void Rows(const std::string& name, const void** out);
  // `floats` f32 values that `fill` computes from a tensor's f32 values.
  void Derived(const std::string& name, int64_t floats, std::function<void(const float*, float*)> fill,
               const float** out);
  // `floats` f32 values that `fill` computes.
  void Computed(int64_t floats, std::function<void(float*)> fill, const float** out);

  // Of everything added so far.
  size_t bytes() const { return bytes_; }

  // INVALID_ARGUMENT naming a tensor that holds a NaN or an infinity.
  absl::StatusOr<std::shared_ptr<const Arena>> Build(const std::string& name);

 private:
  struct Item {
    size_t offset;
    std::function<absl::Status(char*)> fill;
    std::function<void(const char*)> bind;
  };
  void Add(size_t bytes, std::function<absl::Status(char*)> fill, std::function<void(const char*)> bind);
  // Calls `use(first row, rows, f32 values)` for pieces of a tensor seen as [rows, width].
  absl::Status ForRows(const std::string& name, int64_t width,
                       const std::function<void(int64_t, int64_t, const float*)>& use) const;

  const SafetensorsFile& file_;
  const kernels::Precision precision_;
  size_t bytes_ = 0;
  std::vector<Item> items_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_MODEL_ARENA_H_
