#include "model_loader/quantize/quantize.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"
#include "model_loader/format/config.h"
#include "model_loader/format/folder.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/writer/checksums.h"
#include "model_loader/writer/model_writer.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

bool IsMatrixToConvert(const TensorSpec& spec) {
  return spec.shape.size() == 2 && spec.component != Component::kPositions && spec.component != Component::kAdapter;
}

// One weight file of the source.
struct Part {
  std::string name;  // relative to the folder
  std::vector<TensorSpec> specs;
  std::unique_ptr<SafetensorsFile> file;
};

// The weight files that hold matrices to convert, all checked.
absl::StatusOr<std::vector<Part>> OpenParts(const fs::path& folder) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(folder.string());
  if (!config.ok()) return config.status();
  std::vector<Part> parts;
  parts.push_back({"shared.safetensors", SharedTensors(*config), nullptr});
  for (const std::string& code : FoldersIn((folder / "languages").string())) {
    const absl::StatusOr<LanguageConfig> language = ReadLanguageConfig((folder / "languages" / code).string());
    if (!language.ok()) return language.status();
    parts.push_back({absl::StrCat("languages/", code, "/language.safetensors"),
                     LanguageTensors(*config, language->adapter), nullptr});
  }
  for (Part& part : parts) {
    auto file = SafetensorsFile::Open((folder / part.name).string());
    if (!file.ok()) return file.status();
    part.file = *std::move(file);
    const absl::Status status = CheckTensors(*part.file, part.specs, nullptr);
    if (!status.ok()) return status;
  }
  return parts;
}

// Rounds `values` to int8 times a scale, which it returns. FLT_MIN keeps the scale a normal number: below it the
// quotient would lose its precision, and with it the bound on the error.
float QuantizeRow(absl::Span<const float> values, uint8_t* out) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  if (largest == 0) {
    std::memset(out, 0, values.size());
    return 0;
  }
  float scale = std::max(largest / 127.0F, FLT_MIN);
  // Next to the largest float the product of the rounded quotient may be infinite.
  if (std::isinf(127.0F * scale)) scale = std::nextafterf(scale, 0);
  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, in the sum's last place.
  constexpr float kRound = 12'582'912.0F;
  for (size_t i = 0; i < values.size(); ++i) {
    const float rounded = (values[i] / scale + kRound) - kRound;
    out[i] = static_cast<uint8_t>(static_cast<int8_t>(std::clamp(rounded, -127.0F, 127.0F)));
  }
  return scale;
}

// Tells the caller how far the work is, and hears whether to end it.
class Steps {
 public:
  Steps(const QuantizeHooks& hooks, int64_t total) : hooks_(hooks), total_(total) {}

  absl::Status Step(size_t bytes) {
    if (hooks_.cancelled && hooks_.cancelled()) return absl::CancelledError("interrupted; nothing was written");
    done_ += static_cast<int64_t>(bytes);
    if (hooks_.progress) hooks_.progress(done_, total_);
    return absl::OkStatus();
  }

 private:
  const QuantizeHooks& hooks_;
  const int64_t total_;
  int64_t done_ = 0;
};

// Converts one matrix row by row and adds up the errors.
class Converter {
 public:
  Converter(const SafetensorsFile& file, std::string name, DType to, Steps* steps)
      : file_(file), tensor_(*file.Find(name)), to_(to), steps_(*steps) {
    error_.name = std::move(name);
    error_.shape = tensor_.shape;
    error_.from = tensor_.dtype;
    error_.to = to;
    if (to == DType::kI8) scales_.resize(static_cast<size_t>(tensor_.shape[0]));
  }

  absl::Status Convert(int64_t first, int64_t count, absl::Span<uint8_t> chunk) {
    const int64_t width = tensor_.shape[1];
    values_.resize(static_cast<size_t>(count * width));
    const absl::Status read = ReadValues(file_, error_.name, first * width, count * width, values_.data());
    if (!read.ok()) return read;
    restored_.resize(static_cast<size_t>(width));
    const size_t row_bytes = static_cast<size_t>(width) * kernels::SizeOf(to_);
    for (int64_t i = 0; i < count; ++i) {
      const auto row = absl::MakeConstSpan(values_).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
      if (!kernels::AllFinite(row.data(), width)) {
        return absl::InvalidArgumentError(absl::StrCat("row ", first + i, " holds a NaN or an infinity"));
      }
      uint8_t* out = chunk.data() + static_cast<size_t>(i) * row_bytes;
      if (to_ == DType::kI8) {
        const float scale = QuantizeRow(row, out);
        scales_[static_cast<size_t>(first + i)] = scale;
        for (size_t k = 0; k < row.size(); ++k) restored_[k] = scale * static_cast<float>(static_cast<int8_t>(out[k]));
      } else {
        kernels::ConvertFromF32(row.data(), to_, width, out);
        kernels::ConvertToF32(out, to_, width, restored_.data());
      }
      Count(first + i, row);
    }
    const size_t source_row = static_cast<size_t>(width) * kernels::SizeOf(tensor_.dtype);
    const auto bytes =
        tensor_.data.subspan(static_cast<size_t>(first) * source_row, static_cast<size_t>(count) * source_row);
    file_.DropPages(bytes);
    return steps_.Step(bytes.size());
  }

  absl::Status Scales(int64_t first, int64_t count, absl::Span<uint8_t> chunk) const {
    kernels::ConvertFromF32(scales_.data() + first, DType::kF32, count, chunk.data());
    return absl::OkStatus();
  }

  TensorError Error() const {
    TensorError error = error_;
    error.relative_rms = weights_ == 0 ? 0 : std::sqrt(errors_ / weights_);
    return error;
  }

 private:
  void Count(int64_t row, absl::Span<const float> values) {
    double weights = 0, errors = 0, largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      const double error = value - double{restored_[i]};
      weights += value * value;
      errors += error * error;
      largest = std::max(largest, std::abs(value));
      error_.max_abs = std::max(error_.max_abs, std::abs(error));
    }
    weights_ += weights;
    errors_ += errors;
    const double relative = weights == 0 ? 0 : std::sqrt(errors / weights);
    if (relative > error_.worst_row_rms) {
      error_.worst_row_rms = relative;
      error_.worst_row = row;
    }
    const double others = (weights - largest * largest) / static_cast<double>(values.size() - 1);
    if (to_ == DType::kI8 && values.size() > 1 && largest > kOutlierRatio * std::sqrt(std::max(others, 0.0))) {
      ++error_.outlier_rows;
    }
  }

  const SafetensorsFile& file_;
  const TensorView& tensor_;
  const DType to_;
  Steps& steps_;
  std::vector<float> values_, restored_, scales_;
  double weights_ = 0, errors_ = 0;
  TensorError error_;
};

// Copied tensors too: a model that could not be loaded is not written.
absl::Status CheckFinite(const SafetensorsFile& file, const std::string& name, int64_t elements) {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<float> values(static_cast<size_t>(std::min(elements, kChunk)));
  for (int64_t first = 0; first < elements; first += kChunk) {
    const int64_t count = std::min(elements - first, kChunk);
    if (absl::Status status = ReadValues(file, name, first, count, values.data()); !status.ok()) return status;
    if (!kernels::AllFinite(values.data(), count)) {
      return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", name, " holds a NaN or an infinity"));
    }
  }
  return absl::OkStatus();
}

absl::Status ConvertPart(const Part& part, const fs::path& to, DType dtype, Steps* steps, QuantizeReport* report) {
  SafetensorsWriter writer;
  std::vector<std::unique_ptr<Converter>> converters;
  absl::Status status;
  for (const TensorSpec& spec : PresentTensors(*part.file, part.specs)) {
    const TensorView& tensor = *part.file->Find(spec.name);
    report->bytes_before += static_cast<int64_t>(tensor.data.size());
    if (!IsMatrixToConvert(spec) && !spec.scales) {
      if (!spec.integer) status.Update(CheckFinite(*part.file, spec.name, tensor.elements()));
      status.Update(writer.AddView(spec.name, tensor.dtype, tensor.shape, tensor.data));
      continue;
    }
    if (spec.scales) {
      // Of a matrix that stays I8 (an adapter's); of a converted one they have served.
      const bool kept = spec.component == Component::kAdapter || spec.component == Component::kPositions;
      if (kept) status.Update(writer.AddView(spec.name, tensor.dtype, tensor.shape, tensor.data));
      continue;
    }
    converters.push_back(std::make_unique<Converter>(*part.file, spec.name, dtype, steps));
    Converter* converter = converters.back().get();
    status.Update(writer.AddRows(spec.name, dtype, tensor.shape,
                                 [converter](int64_t first, int64_t count, absl::Span<uint8_t> chunk) {
                                   return converter->Convert(first, count, chunk);
                                 }));
    if (dtype == DType::kI8) {
      // Its name sorts behind the matrix's, so that the scales are known when it is written.
      status.Update(writer.AddRows(ScaleName(spec.name), DType::kF32, {tensor.shape[0]},
                                   [converter](int64_t first, int64_t count, absl::Span<uint8_t> chunk) {
                                     return converter->Scales(first, count, chunk);
                                   }));
    }
  }
  if (status.ok()) status = WriteTensors((to / part.name).string(), writer, part.specs);
  report->bytes_after += static_cast<int64_t>(writer.data_bytes());
  for (const auto& converter : converters) {
    report->matrices.push_back(converter->Error());
    report->matrices.back().file = part.name;
  }
  return status;
}

// Copies every other file of the folder.
absl::Status CopyRest(const fs::path& from, const fs::path& to, const std::vector<Part>& parts, Steps* steps,
                      QuantizeReport* report) {
  constexpr int kDeepest = 4;  // languages/<code>/adapters/<name>/
  std::error_code error;
  const auto fault = [&error](const fs::path& path) {
    return absl::UnknownError(absl::StrCat(path.string(), ": ", error.message()));
  };
  fs::recursive_directory_iterator it(from, fs::directory_options::follow_directory_symlink, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    if (absl::Status status = steps->Step(0); !status.ok()) return status;
    const fs::path relative = it->path().lexically_relative(from);
    if (relative.filename().string().front() == '.') {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_directory(error)) {
      if (it.depth() >= kDeepest) it.disable_recursion_pending();
      fs::create_directories(to / relative, error);
    } else if (relative == "samples.json") {
      report->samples_left_out = true;
    } else if (relative != kChecksumFile &&
               std::none_of(parts.begin(), parts.end(), [&](const Part& part) { return relative == part.name; })) {
      fs::copy_file(it->path(), to / relative, error);
    }
    if (error) return fault(it->path());
  }
  return error ? fault(from) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeModel(const std::string& from, const std::string& to, DType dtype,
                                             const QuantizeHooks& hooks) {
  if (dtype != DType::kI8 && dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("matrices are converted to I8 or BF16, not to ", Absl(kernels::Name(dtype))));
  }
  const absl::StatusOr<std::vector<Part>> parts = OpenParts(from);
  if (!parts.ok()) return parts.status();
  int64_t others = 0, total = 0;
  for (const Part& part : *parts) {
    for (const TensorSpec& spec : part.specs) {
      const TensorView* tensor = part.file->Find(spec.name);
      if (tensor == nullptr || !IsMatrixToConvert(spec)) continue;
      if (dtype == DType::kI8 && tensor->dtype == DType::kI8) {
        return absl::InvalidArgumentError(absl::StrCat(part.file->name(), ": ", spec.name,
                                                       " is I8 already; quantise the model that it was made from"));
      }
      if (tensor->dtype != dtype) ++others;
      total += static_cast<int64_t>(tensor->data.size());
    }
  }
  if (others == 0) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": every matrix is ", Absl(kernels::Name(dtype)), " already"));
  }
  QuantizeReport report;
  Steps steps(hooks, total);
  const absl::Status status = WriteFolder(to, [&](const std::string& folder) {
    absl::Status written = CopyRest(from, folder, *parts, &steps, &report);
    for (const Part& part : *parts) {
      if (!written.ok()) break;
      written = ConvertPart(part, folder, dtype, &steps, &report);
    }
    return written.ok() ? WriteChecksums(folder, [&steps] { return steps.Step(0); }) : written;
  });
  if (!status.ok()) return status;
  return report;
}

}  // namespace koine::model_loader
