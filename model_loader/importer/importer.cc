#include "model_loader/importer/importer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/accounting/account.h"
#include "model_loader/checkpoint/checkpoint_tensors.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/importer/families.h"
#include "model_loader/importer/hf_config.h"
#include "model_loader/importer/hf_files.h"
#include "model_loader/importer/hf_settings.h"
#include "model_loader/importer/hf_tokenizer.h"
#include "model_loader/importer/languages.h"
#include "model_loader/importer/slicing.h"
#include "model_loader/importer/tensor_plan.h"
#include "model_loader/model/language_names.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/load_tokenizer.h"
#include "model_loader/writer/checksums.h"
#include "model_loader/writer/model_writer.h"

namespace koine::model_loader {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

// Whether every value of stored floats is a number: the exponent is not all ones.
bool AllFinite(absl::Span<const uint8_t> bytes, DType type) {
  bool finite = true;
  if (type == DType::kF32) {
    for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      uint32_t bits;
      std::memcpy(&bits, bytes.data() + i, sizeof(bits));
      finite &= (bits & 0x7f800000U) != 0x7f800000U;
    }
    return finite;
  }
  const uint16_t mask = type == DType::kF16 ? 0x7c00U : 0x7f80U;
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    finite &= (bits & mask) != mask;
  }
  return finite;
}

// A language's part of the vocabulary; no ids: it uses the model's.
struct Slice {
  std::vector<int32_t> ids;
};

class Importer {
 public:
  explicit Importer(const ImportOptions& options) : options_(options) {}

  absl::StatusOr<ImportReport> Run() {
    absl::Status status = CheckOptions();
    if (status.ok()) status = ReadCheckpoint();
    if (status.ok()) status = Configure();
    if (status.ok()) status = ChooseLanguages();
    if (status.ok()) status = MakeSlices();
    if (status.ok()) status = FinishConfig();
    if (status.ok()) status = Write();
    if (!status.ok()) return status;
    status = FillReport();
    if (!status.ok()) return status;
    return std::move(report_);
  }

 private:
  absl::Status CheckOptions() {
    std::error_code error;
    if (options_.out.empty()) return absl::InvalidArgumentError("no folder to write to (--out)");
    if (fs::exists(options_.out, error)) {
      return absl::AlreadyExistsError(absl::StrCat(options_.out, " exists already; nothing was written"));
    }
    if (options_.dtype.has_value() && *options_.dtype != DType::kF32 && *options_.dtype != DType::kF16 &&
        *options_.dtype != DType::kBF16) {
      return absl::InvalidArgumentError("weights can be stored as F32, F16 or BF16");
    }
    if (options_.tables == TableMode::kFull && !options_.samples.empty()) {
      return absl::InvalidArgumentError("--sample goes with --tables sample or script");
    }
    return absl::OkStatus();
  }

  absl::Status ReadCheckpoint() {
    std::error_code error;
    std::string folder = options_.folder;
    if (!fs::is_directory(folder, error)) return CheckpointTensors::Open(folder).status();  // it says what is there
    absl::StatusOr<SentenceSettings> sentence = ReadSentenceSettings(folder);
    if (!sentence.ok()) return sentence.status();
    sentence_ = *std::move(sentence);
    if (!sentence_.transformer_folder.empty()) folder = absl::StrCat(folder, "/", sentence_.transformer_folder);
    folder_ = folder;
    // First the weights: where there are none of ours the message says what the folder is.
    absl::StatusOr<std::unique_ptr<CheckpointTensors>> checkpoint = CheckpointTensors::Open(folder);
    if (!checkpoint.ok()) return checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    // Before anything else is read from them: a damaged .bin file would otherwise become a model.
    if (const absl::Status sums = checkpoint_->VerifyChecksums(); !sums.ok()) return sums;
    for (const std::string& warning : checkpoint_->warnings()) report_.notes.push_back(warning);
    const std::string path = absl::StrCat(folder, "/config.json");
    const absl::StatusOr<nlohmann::json> json = ReadHfJson(path);
    if (!json.ok()) return json.status();
    absl::StatusOr<HfConfig> hf = ParseHfConfig(*json, path);
    if (!hf.ok()) return hf.status();
    hf_ = *std::move(hf);
    const bool t5 = hf_.family == HfFamily::kT5 || hf_.family == HfFamily::kMT5;
    if (sentence_.present && t5 && !hf_.encoder_only) {
      hf_.encoder_only = true;
      hf_.decoder_layers = 0;
      report_.notes.push_back("modules.json makes it a sentence encoder: the decoder is left out");
    }
    if (sentence_.present && !hf_.encoder_only) {
      return absl::InvalidArgumentError(absl::StrCat(options_.folder, "/modules.json: a sentence encoder made of a ",
                                                     hf_.model_type, " model is not supported"));
    }
    if (!sentence_.dense_folder.empty()) {
      absl::StatusOr<std::unique_ptr<CheckpointTensors>> dense =
          CheckpointTensors::Open(absl::StrCat(options_.folder, "/", sentence_.dense_folder));
      if (!dense.ok()) return dense.status();
      dense_ = *std::move(dense);
      if (const absl::Status sums = dense_->VerifyChecksums(); !sums.ok()) return sums;
    }
    absl::StatusOr<HfTokenizer> tokenizer =
        ReadHfTokenizer(folder, hf_, sentence_.lower_case, options_.legacy_source_order);
    if (!tokenizer.ok()) return tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    report_.notes.insert(report_.notes.end(), tokenizer_.notes.begin(), tokenizer_.notes.end());
    report_.pieces = tokenizer_.tokenizer->size();
    return absl::OkStatus();
  }

  const Tokenizer& tokenizer() const { return *tokenizer_.tokenizer; }

  absl::Status Configure() {
    GenerationSettings generation;
    if (!hf_.encoder_only) {
      absl::StatusOr<GenerationSettings> read = ReadGenerationSettings(folder_, hf_, tokenizer());
      if (!read.ok()) return read.status();
      generation = *std::move(read);
    }
    // Positions that are computed are as many as anything in the files asks for.
    constexpr int64_t kMostComputed = 4'096;
    const int64_t longest = std::max(std::min(tokenizer_.model_max_length, kMostComputed),
                                     std::min(generation.generation.max_tokens.value_or(0), kMostComputed));
    config_ = ArchitectureOf(hf_, longest);
    const fs::path named = fs::absolute(options_.folder).lexically_normal();
    config_.name = !options_.name.empty() ? options_.name
                                          : (named.has_filename() ? named : named.parent_path()).filename().string();
    report_.name = config_.name;
    config_.translates = !hf_.encoder_only;
    config_.prompt = tokenizer_.prompt;
    // A text that is encoded has no target language.
    config_.encodes =
        std::find(config_.prompt.source.begin(), config_.prompt.source.end(), "$target") == config_.prompt.source.end();
    config_.tokenizer = tokenizer_.config;
    config_.prompts = sentence_.present ? sentence_.prompts : TaskPrompts(hf_);
    config_.default_prompt = sentence_.default_prompt;
    if (absl::Status status = ConfigurePooling(); !status.ok()) return status;
    if (!hf_.encoder_only) {
      if (absl::Status status = ConfigureDecoding(generation); !status.ok()) return status;
    }
    const int64_t positions = config_.architecture.max_positions;
    const int64_t longest_source =
        sentence_.max_seq_length > 0 ? sentence_.max_seq_length : tokenizer_.model_max_length;
    if (longest_source > 0 && longest_source < positions) config_.max_source_tokens = longest_source;
    report_.family = FamilyTitle(hf_, config_);
    return absl::OkStatus();
  }

  absl::Status ConfigurePooling() {
    if (sentence_.present) {
      if (options_.pooling.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat(options_.folder, "/modules.json says how to pool: --pooling has no meaning here"));
      }
      config_.pooling = sentence_.pooling;
      return absl::OkStatus();
    }
    if (!hf_.encoder_only) {
      if (options_.pooling == PoolingChoice::kPooler) {
        return absl::InvalidArgumentError("--pooling pooler: only BERT and XLM-R checkpoints have a pooler");
      }
      if (options_.pooling == PoolingChoice::kCls) config_.pooling.mode = PoolingMode::kCls;
      return absl::OkStatus();
    }
    // sentence-transformers' own choice for a model without modules.json: the mean, not normalised.
    config_.pooling.normalize = false;
    switch (options_.pooling.value_or(PoolingChoice::kMean)) {
      case PoolingChoice::kMean:
        if (!options_.pooling.has_value()) {
          report_.notes.push_back("no modules.json: vectors are the mean, not normalised; --pooling chooses otherwise");
        }
        break;
      case PoolingChoice::kPooler:
        config_.pooling.dense = PoolingDense{hf_.d_model, DenseActivation::kTanh, true};
        [[fallthrough]];
      case PoolingChoice::kCls:
        config_.pooling.mode = PoolingMode::kCls;
        break;
    }
    return absl::OkStatus();
  }

  absl::Status ConfigureDecoding(const GenerationSettings& settings) {
    config_.generation = settings.generation;
    report_.notes.insert(report_.notes.end(), settings.notes.begin(), settings.notes.end());
    auto& most = config_.generation.max_tokens;
    if (most.has_value()) most = std::min(*most, config_.architecture.max_positions);
    if (config_.generation.min_tokens.has_value() && most.has_value()) {
      config_.generation.min_tokens = std::min(*config_.generation.min_tokens, *most);
    }
    if (config_.prompt.decoder_start.empty()) {
      if (!settings.decoder_start.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(folder_, "/config.json: decoder_start_token_id: is missing"));
      }
      config_.prompt.decoder_start = PieceOf(*settings.decoder_start);
      if (config_.prompt.decoder_start.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            folder_, "/config.json: decoder_start_token_id: ", *settings.decoder_start, " is no piece's id"));
      }
    }
    if (settings.forced_start.has_value() && config_.prompt.decoder_forced.empty() &&
        config_.prompt.decoder_start != "$target") {
      const std::string piece = PieceOf(*settings.forced_start);
      if (piece.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder_, ": forced_bos_token_id: ", *settings.forced_start, " is no piece's id"));
      }
      config_.prompt.decoder_forced = {piece};
    }
    // The end mark of the tokenizer and of the model must be one.
    if (tokenizer().PieceToId(tokenizer_.eos) != *hf_.eos) {
      return absl::InvalidArgumentError(absl::StrCat(folder_, "/config.json: eos_token_id: is ", *hf_.eos,
                                                     ", but the tokenizer's \"", Printable(tokenizer_.eos), "\" is ",
                                                     tokenizer().PieceToId(tokenizer_.eos)));
    }
    return absl::OkStatus();
  }

  std::string PieceOf(int64_t id) const {
    return id >= 0 && id < tokenizer().size() ? tokenizer().IdToPiece(static_cast<int32_t>(id)) : "";
  }

  absl::Status ChooseLanguages() {
    std::vector<LanguageConfig> all;
    if (tokenizer_.languages.empty()) {
      std::vector<TaggedLanguage> untagged;
      for (const std::string& code : options_.languages) untagged.push_back({code, "", code});
      languages_ = DescribeLanguages(untagged);
    } else {
      all = DescribeLanguages(tokenizer_.languages);
      if (options_.languages.empty()) {
        languages_ = all;
      } else {
        LanguageNames names;
        for (const LanguageConfig& language : all) {
          if (absl::Status status = names.Add(language); !status.ok()) return status;
        }
        for (const std::string& wanted : options_.languages) {
          const absl::StatusOr<std::string> code = names.Find(wanted);
          if (!code.ok()) return absl::InvalidArgumentError(absl::StrCat("--languages: ", code.status().message()));
          languages_.push_back(*std::find_if(all.begin(), all.end(),
                                             [&](const LanguageConfig& language) { return language.code == *code; }));
        }
      }
    }
    LanguageNames names;
    for (const LanguageConfig& language : languages_) {
      if (absl::Status status = names.Add(language); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--languages: ", status.message()));
      }
      config_.languages.push_back(language.code);
    }
    config_.shared_embedding = options_.tables == TableMode::kFull;
    if (!config_.shared_embedding && languages_.empty()) {
      return absl::InvalidArgumentError(
          "this checkpoint names no languages: --tables sample and script need --languages");
    }
    for (const std::string& pair : options_.zero_shot) {
      const auto readings = ReadPair(pair, [&names](const std::string& name) { return names.Find(name).ok(); });
      if (readings.size() != 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--zero-shot: \"", Printable(pair), "\" is not SOURCE-TARGET with two ", "of the imported languages"));
      }
      config_.zero_shot_pairs.push_back({*names.Find(readings.front().source), *names.Find(readings.front().target)});
    }
    // Samples by code.
    for (const auto& [language, file] : options_.samples) {
      const absl::StatusOr<std::string> code = names.Find(language);
      if (!code.ok()) return absl::InvalidArgumentError(absl::StrCat("--sample: ", code.status().message()));
      sample_files_[*code].push_back(file);
    }
    return absl::OkStatus();
  }

  // Where translations are made of another SentencePiece model's pieces than texts (MarianMT): a tokenizer that cuts
  // with that model, into the same ids. Null elsewhere.
  absl::StatusOr<std::unique_ptr<Tokenizer>> TranslationTokenizer() const {
    if (tokenizer_.config.kind != TokenizerKind::kSentencePieceVocab || tokenizer_.config.files.size() != 3) {
      return std::unique_ptr<Tokenizer>();
    }
    TokenizerConfig config = tokenizer_.config;
    config.files.erase(config.files.begin());
    return ParseTokenizer(config, {tokenizer_.contents[1], tokenizer_.contents[2]});
  }

  absl::Status MakeSlices() {
    slices_.resize(languages_.size());
    if (config_.shared_embedding) return absl::OkStatus();
    report_.sliced = true;
    if (options_.tables == TableMode::kSample) {
      std::vector<std::string> without;
      for (const LanguageConfig& language : languages_) {
        if (sample_files_.count(language.code) == 0) without.push_back(language.code);
      }
      if (!without.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--tables sample needs --sample LANGUAGE=FILE for ", absl::StrJoin(without, ", ")));
      }
    }
    const std::vector<int32_t> common = CommonRows(tokenizer());
    const absl::StatusOr<std::unique_ptr<Tokenizer>> translations = TranslationTokenizer();
    if (!translations.ok()) return translations.status();
    // What is never generated must be there to be masked.
    std::set<int32_t> suppressed;
    for (const std::string& piece : config_.generation.suppressed) suppressed.insert(tokenizer().PieceToId(piece));
    for (size_t i = 0; i < languages_.size(); ++i) {
      SamplePieces sample;
      sample.ids = suppressed;
      for (const std::string& file : sample_files_[languages_[i].code]) {
        if (absl::Status status = AddSample(file, tokenizer(), &sample); !status.ok()) return status;
        if (*translations == nullptr) continue;
        const absl::StatusOr<SamplePieces> translated = ReadSample(file, **translations);
        if (!translated.ok()) return translated.status();
        sample.ids.insert(translated->ids.begin(), translated->ids.end());
      }
      if (options_.tables == TableMode::kSample && sample.pieces == 0) {
        return absl::InvalidArgumentError(absl::StrCat("--sample: the files of ", languages_[i].code, " have no text"));
      }
      if (options_.tables == TableMode::kScript && languages_[i].script.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--tables script: the script of ", languages_[i].code, " is not known; give it a --sample"));
      }
      slices_[i].ids =
          SliceRows(tokenizer(), common, sample.ids, languages_[i].script, options_.tables == TableMode::kScript);
      LanguageReport report;
      report.sample_pieces = sample.pieces;
      report.unknown_whole = sample.unknown;
      report.unknown_slice = sample.unknown;
      if (sample.pieces > 0) {
        // The restricted tokenizer itself tells what the slice loses.
        const auto unknown = static_cast<int32_t>(
            std::find(slices_[i].ids.begin(), slices_[i].ids.end(), tokenizer().unknown_id()) - slices_[i].ids.begin());
        const auto restricted = ParseSlicedTokenizer(tokenizer_.config, tokenizer_.contents, slices_[i].ids, unknown);
        if (!restricted.ok()) return restricted.status();
        report.unknown_slice = 0;
        for (const std::string& file : sample_files_[languages_[i].code]) {
          const absl::StatusOr<SamplePieces> counted = ReadSample(file, **restricted);
          if (!counted.ok()) return counted.status();
          report.unknown_slice += counted->unknown;
        }
      }
      report_.languages.push_back(report);
    }
    return absl::OkStatus();
  }

  // An id in the numbers that the tables have: the whole vocabulary's, or a slice's (the same in all of them).
  int32_t Local(const std::string& piece) const {
    const int32_t id = piece.empty() ? -1 : tokenizer().PieceToId(piece);
    if (id < 0 || config_.shared_embedding) return id;
    const std::vector<int32_t>& ids = slices_.front().ids;
    const auto found = std::find(ids.begin(), ids.end(), id);
    return found == ids.end() ? -1 : static_cast<int32_t>(found - ids.begin());
  }

  absl::Status FinishConfig() {
    config_.special_tokens.pad = Local(tokenizer_.pad);
    config_.special_tokens.bos = Local(tokenizer_.bos);
    config_.special_tokens.eos = Local(tokenizer_.eos);
    config_.special_tokens.unk = Local(tokenizer_.unk);
    absl::StatusOr<TensorPlan> plan = PlanTensors(*checkpoint_, dense_.get(), hf_, folder_, config_);
    if (!plan.ok()) return plan.status();
    plan_ = *std::move(plan);
    if (tokenizer().size() > plan_.rows) {
      return absl::InvalidArgumentError(absl::StrCat(folder_, ": the tokenizer has ", tokenizer().size(),
                                                     " ids, but the table only ", plan_.rows, " rows"));
    }
    // The same checks that reading the model will make: nothing is written that could not be read.
    const absl::StatusOr<ModelConfig> again =
        ParseModelConfig(ToJson(config_), absl::StrCat(folder_, " as a Koine model"));
    if (!again.ok()) return again.status();
    for (const LanguageConfig& language : languages_) {
      const absl::StatusOr<LanguageConfig> checked =
          ParseLanguageConfig(ToJson(language), absl::StrCat("language ", Printable(language.code)));
      if (!checked.ok()) return checked.status();
    }
    return absl::OkStatus();
  }

  bool Cancelled() const { return options_.cancelled && options_.cancelled(); }

  absl::Status Step(size_t bytes) {
    if (Cancelled()) return absl::CancelledError("interrupted; nothing was written");
    done_ += static_cast<int64_t>(bytes);
    if (options_.progress) options_.progress(done_, total_);
    return absl::OkStatus();
  }

  // Adds a tensor to a file: all its rows, or those of a slice.
  absl::Status Add(const std::string& name, const Slice& slice, bool vocabulary, SafetensorsWriter& writer,
                   std::vector<LoadedTensor>& list, Component component) {
    const auto found = plan_.sources.find(name);
    if (found == plan_.sources.end()) return absl::InternalError(absl::StrCat(name, ": no source"));
    const TensorSource& source = found->second;
    const CheckpointTensor& tensor = source.tensor;
    const std::vector<int32_t>* ids = vocabulary && !slice.ids.empty() ? &slice.ids : nullptr;
    std::vector<int64_t> shape = tensor.shape;
    if (ids != nullptr) shape.front() = static_cast<int64_t>(ids->size());
    // A sum of two tensors of a narrow type needs the wide one.
    const DType stored = source.added_row.has_value() ? DType::kF32 : tensor.float_type().value_or(DType::kF32);
    const DType type = options_.dtype.value_or(stored);
    LoadedTensor loaded;
    loaded.name = name;
    loaded.component = component;
    loaded.shape = shape;
    loaded.file_dtype = type;
    loaded.elements = shape.empty() ? 1 : shape.front() * tensor.row_elements();
    loaded.file_bytes = loaded.elements * static_cast<int64_t>(kernels::SizeOf(type));
    total_ += loaded.file_bytes;
    list.push_back(loaded);
    const auto written = [&tensor] { tensor.DropPages(); };
    const auto check = [&source](absl::Span<const uint8_t> bytes, DType as) {
      return AllFinite(bytes, as)
                 ? absl::OkStatus()
                 : absl::InvalidArgumentError(absl::StrCat("\"", source.name, "\" holds values that are not finite"));
    };
    // Runs of rows that lie side by side in the source are read at once.
    const auto for_runs = [ids](int64_t first, int64_t count, const auto& read) {
      for (int64_t i = 0; i < count;) {
        int64_t run = count - i;
        int64_t from = first + i;
        if (ids != nullptr) {
          from = (*ids)[static_cast<size_t>(first + i)];
          run = 1;
          while (i + run < count && (*ids)[static_cast<size_t>(first + i + run)] == from + run) ++run;
        }
        if (absl::Status status = read(i, from, run); !status.ok()) return status;
        i += run;
      }
      return absl::OkStatus();
    };
    if (type == stored && !source.added_row.has_value()) {
      const auto row_bytes = static_cast<size_t>(tensor.row_elements()) * SizeOf(tensor.type);
      return writer.AddRows(
          name, type, shape,
          [this, &tensor, check, type, for_runs, row_bytes](int64_t first, int64_t count,
                                                            absl::Span<uint8_t> chunk) -> absl::Status {
            const absl::Status status = for_runs(first, count, [&](int64_t at, int64_t from, int64_t run) {
              return tensor.ReadBytes(
                  from, run, chunk.subspan(static_cast<size_t>(at) * row_bytes, static_cast<size_t>(run) * row_bytes));
            });
            if (!status.ok()) return status;
            if (absl::Status finite = check(chunk, type); !finite.ok()) return finite;
            return Step(chunk.size());
          },
          written);
    }
    const auto width = static_cast<size_t>(tensor.row_elements());
    std::vector<float> added;
    if (source.added_row.has_value()) {
      added.resize(width);
      if (absl::Status status = source.added_row->ReadRows(0, 1, absl::MakeSpan(added)); !status.ok()) return status;
    }
    return writer.AddF32Rows(
        name, type, shape,
        [this, &tensor, check, type, for_runs, width, added](int64_t first, int64_t count,
                                                             absl::Span<float> chunk) -> absl::Status {
          const absl::Status status = for_runs(first, count, [&](int64_t at, int64_t from, int64_t run) {
            return tensor.ReadRows(from, run,
                                   chunk.subspan(static_cast<size_t>(at) * width, static_cast<size_t>(run) * width));
          });
          if (!status.ok()) return status;
          for (size_t i = 0; !added.empty() && i < chunk.size(); ++i) chunk[i] += added[i % width];
          const auto* bytes = reinterpret_cast<const uint8_t*>(chunk.data());
          if (absl::Status finite = check({bytes, chunk.size() * sizeof(float)}, DType::kF32); !finite.ok()) {
            return finite;
          }
          return Step(chunk.size() * kernels::SizeOf(type));
        },
        written);
  }

  absl::Status Fill(const std::vector<TensorSpec>& specs, const Slice& slice, SafetensorsWriter& writer,
                    std::vector<LoadedTensor>& list) {
    for (const TensorSpec& spec : specs) {
      const bool vocabulary = !spec.shape.empty() && spec.shape.front() == kVocabularyRows;
      if (spec.integer) {
        if (slice.ids.empty()) continue;
        const auto* bytes = reinterpret_cast<const uint8_t*>(slice.ids.data());
        const auto rows = static_cast<int64_t>(slice.ids.size());
        LoadedTensor loaded;
        loaded.name = spec.name;
        loaded.component = spec.component;
        loaded.shape = {rows};
        loaded.file_dtype = DType::kI32;
        loaded.elements = rows;
        loaded.file_bytes = rows * 4;
        list.push_back(loaded);
        if (absl::Status status = writer.Add(spec.name, DType::kI32, {rows}, {bytes, slice.ids.size() * 4});
            !status.ok()) {
          return status;
        }
        continue;
      }
      if (!spec.required && plan_.sources.count(spec.name) == 0) continue;
      if (absl::Status status = Add(spec.name, slice, vocabulary, writer, list, spec.component); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }

  absl::Status Write() {
    SafetensorsWriter shared;
    if (absl::Status status = Fill(SharedTensors(config_), Slice{}, shared, shared_list_); !status.ok()) return status;
    std::vector<SafetensorsWriter> own(languages_.size());
    own_lists_.resize(languages_.size());
    for (size_t i = 0; i < languages_.size(); ++i) {
      const absl::Status status =
          Fill(LanguageTensors(config_, languages_[i].adapter), slices_[i], own[i], own_lists_[i]);
      if (!status.ok()) return status;
    }
    return WriteFolder(options_.out, [&](const std::string& folder) -> absl::Status {
      const ModelWriter writer(folder);
      absl::Status status = writer.WriteShared(config_, shared);
      for (size_t i = 0; i < tokenizer_.config.files.size() && status.ok(); ++i) {
        status = WriteSmallFile(absl::StrCat(folder, "/", tokenizer_.config.files[i]), tokenizer_.contents[i]);
      }
      for (size_t i = 0; i < languages_.size() && status.ok(); ++i) {
        status = writer.WriteLanguage(config_, languages_[i], own[i], "");
        if (status.ok()) status = Step(0);
      }
      if (status.ok() && options_.before_publishing) status = options_.before_publishing(folder);
      return status.ok() ? WriteChecksums(folder, [this] { return Step(0); }) : status;
    });
  }

  // Multiply-adds of one decoded token: the decoder's projections (keys and values of cross-attention are computed once
  // a source) and the output table.
  int64_t MultiplyAdds(int64_t rows) const {
    if (config_.kind == ModelKind::kEncoder) return 0;
    const kernels::TransformerConfig& a = config_.architecture;
    const int64_t width = int64_t{a.heads} * a.d_head;
    const int64_t layer = 6 * int64_t{a.d_model} * width + (a.gated_ffn ? 3 : 2) * int64_t{a.d_model} * a.d_ffn;
    return static_cast<int64_t>(a.decoder_layers.size()) * layer + rows * a.d_model;
  }

  absl::Status FillReport() {
    report_.out = options_.out;
    report_.rows = plan_.rows;
    report_.tied = plan_.tied;
    report_.dropped = plan_.dropped;
    report_.ignored = plan_.ignored;
    report_.notes.insert(report_.notes.end(), plan_.notes.begin(), plan_.notes.end());
    report_.multiply_adds = MultiplyAdds(plan_.rows);
    const auto bytes_of = [this](const char* name) -> int64_t {
      const auto found = plan_.sources.find(name);
      if (found == plan_.sources.end()) return 0;
      const DType type = options_.dtype.value_or(found->second.tensor.float_type().value_or(DType::kF32));
      return found->second.tensor.elements() * static_cast<int64_t>(kernels::SizeOf(type));
    };
    report_.table_bytes = bytes_of("embedding.weight") + bytes_of("output.weight");
    const absl::StatusOr<PlanCounts> shared_formula =
        FormulaCount(config_, {}, config_.shared_embedding ? plan_.rows : 0);
    if (!shared_formula.ok()) return shared_formula.status();
    OwnerTensors shared;
    shared.owner = "shared";
    shared.tensors = shared_list_;
    shared.formula = shared_formula->shared_total;
    std::vector<OwnerTensors> owners;
    report_.languages.resize(languages_.size());
    for (size_t i = 0; i < languages_.size(); ++i) {
      LanguageReport& language = report_.languages[i];
      language.code = languages_[i].code;
      language.name = languages_[i].name;
      language.tag = languages_[i].tag;
      language.aliases = languages_[i].aliases;
      if (own_lists_[i].empty()) continue;
      for (const LoadedTensor& tensor : own_lists_[i]) language.table_bytes += tensor.file_bytes;
      language.rows = static_cast<int64_t>(slices_[i].ids.size());
      language.multiply_adds = MultiplyAdds(language.rows);
      OwnerTensors owner;
      owner.owner = language.code;
      owner.tensors = own_lists_[i];
      const absl::StatusOr<PlanCounts> formula = FormulaCount(config_, languages_[i].adapter, language.rows);
      if (!formula.ok()) return formula.status();
      owner.formula = formula->language_total;
      owners.push_back(owner);
    }
    const absl::StatusOr<Account> account = MakeAccount(shared, owners);
    if (!account.ok()) return account.status();
    report_.tensors = account->total.tensors;
    report_.bytes = account->total.bytes;
    report_.parameters = account->total.parameters;
    report_.account = RenderTable(*account);
    return absl::OkStatus();
  }

  const ImportOptions& options_;
  ImportReport report_;
  std::string folder_;  // with config.json
  SentenceSettings sentence_;
  std::unique_ptr<CheckpointTensors> checkpoint_, dense_;
  HfConfig hf_;
  HfTokenizer tokenizer_;
  ModelConfig config_;
  std::vector<LanguageConfig> languages_;
  std::map<std::string, std::vector<std::string>> sample_files_;  // by code
  std::vector<Slice> slices_;                                     // one a language
  TensorPlan plan_;
  std::vector<LoadedTensor> shared_list_;
  std::vector<std::vector<LoadedTensor>> own_lists_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

absl::StatusOr<ImportReport> Import(const ImportOptions& options) { return Importer(options).Run(); }

}  // namespace koine::model_loader
