#include "clients/cli/report.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"

namespace koine::cli {
namespace {

constexpr auto kLeft = Table::Align::kLeft;
constexpr auto kRight = Table::Align::kRight;

// Code points: what a cell takes on the screen, for the scripts that stand before the last column.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Seconds(double seconds) { return absl::StrFormat("%.3f s", seconds); }

// "12 of 4,096"
std::string Of(int64_t part, int64_t whole) { return absl::StrCat(GroupDigits(part), " of ", GroupDigits(whole)); }

std::string KeyValues(const std::vector<std::pair<std::string, std::string>>& pairs) {
  size_t width = 0;
  for (const auto& [key, value] : pairs) width = std::max(width, Width(key));
  std::string out;
  for (const auto& [key, value] : pairs) {
    absl::StrAppend(&out, key, std::string(width - Width(key) + 2, ' '), value, "\n");
  }
  return out;
}

const char* StateName(v1::LanguageState state) {
  switch (state) {
    case v1::LANGUAGE_STATE_LOADED:
      return "loaded";
    case v1::LANGUAGE_STATE_COLD:
      return "cold";
    case v1::LANGUAGE_STATE_LOADING:
      return "loading";
    case v1::LANGUAGE_STATE_DRAINING:
      return "draining";
    case v1::LANGUAGE_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

std::string Cut(const std::string& text, size_t code_points) {
  std::string out;
  size_t seen = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 && ++seen > code_points) return out + "...";
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

}  // namespace

Table::Table(std::vector<std::string> titles, std::vector<Align> aligns) : aligns_(std::move(aligns)) {
  rows_.push_back(std::move(titles));
}

void Table::Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

void Table::Rule() { rows_.emplace_back(); }

std::string Table::Text() const {
  std::vector<size_t> widths(aligns_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  size_t total = 2 * (widths.size() - 1);
  for (const size_t width : widths) total += width;
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    if (row.empty()) line = std::string(total, '-');
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - Width(row[i]), ' ');
      absl::StrAppend(&line, i > 0 ? "  " : "", aligns_[i] == kRight ? blanks : "", row[i],
                      aligns_[i] == kLeft ? blanks : "");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string GroupDigits(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string HumanBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {  // 1023.95 would print as 1024.0
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string ParametersReport(const v1::GetParameterStatsResponse& stats) {
  std::string out = absl::StrCat("Parameters of ", stats.model(), "\n\n");
  const double all = static_cast<double>(std::max<int64_t>(stats.parameters(), 1));
  const bool checksums = std::any_of(stats.owners().begin(), stats.owners().end(),
                                     [](const v1::OwnerParameters& owner) { return !owner.checksum().empty(); });

  Table owners({"owner", "state", "parameters", "by formula", "share", "in files", "in memory", "kernel says",
                checksums ? "checksum" : ""},
               {kLeft, kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kLeft});
  for (const v1::OwnerParameters& owner : stats.owners()) {
    owners.Row({owner.owner(), StateName(owner.state()), GroupDigits(owner.parameters()),
                owner.formula_parameters() > 0 ? GroupDigits(owner.formula_parameters()) : "-",
                Percent(static_cast<double>(owner.parameters()) / all), HumanBytes(owner.file_bytes()),
                HumanBytes(owner.resident_bytes()),
                owner.kernel_resident_bytes() > 0 ? HumanBytes(owner.kernel_resident_bytes()) : "-", owner.checksum()});
  }
  owners.Rule();
  owners.Row({"all", "", GroupDigits(stats.parameters()), "", Percent(static_cast<double>(stats.parameters()) / all),
              HumanBytes(stats.file_bytes()), HumanBytes(stats.resident_bytes()),
              stats.kernel_resident_bytes() > 0 ? HumanBytes(stats.kernel_resident_bytes()) : "-", ""});
  absl::StrAppend(&out, owners.Text(), "\n");

  Table components({"owner", "component", "parameters", "tensors", "in files", "stored as"},
                   {kLeft, kLeft, kRight, kRight, kRight, kLeft});
  for (const v1::OwnerParameters& owner : stats.owners()) {
    for (const v1::ComponentParameters& component : owner.components()) {
      const std::string dtypes = absl::StrJoin(
          component.dtypes(), " ", [](std::string* to, const v1::DTypeCount& d) { absl::StrAppend(to, d.dtype()); });
      components.Row({owner.owner(), component.component(), GroupDigits(component.parameters()),
                      absl::StrCat(component.tensors()), HumanBytes(component.file_bytes()), dtypes});
    }
  }
  absl::StrAppend(&out, components.Text());

  if (stats.has_sharing()) {
    const v1::SharingAccount& sharing = stats.sharing();
    Table saving(
        {absl::StrCat("against ", sharing.languages(), " independent models"), "independent", "this model", "saving"},
        {kLeft, kRight, kRight, kRight});
    saving.Row({"all parameters", GroupDigits(sharing.independent_parameters()), GroupDigits(sharing.parameters()),
                Percent(sharing.saving())});
    saving.Row({"attention, Q K V", GroupDigits(sharing.independent_attention_qkv()),
                GroupDigits(sharing.attention_qkv()), Percent(sharing.attention_qkv_saving())});
    saving.Row({"attention with output projection", GroupDigits(sharing.independent_attention_qkvo()),
                GroupDigits(sharing.attention_qkvo()), Percent(sharing.attention_qkvo_saving())});
    absl::StrAppend(&out, "\n", saving.Text());
  }
  if (stats.has_next_language()) {
    const v1::LanguageCost& next = stats.next_language();
    absl::StrAppend(&out, "\nOne more language: ", GroupDigits(next.parameters()), " parameters, ",
                    HumanBytes(next.file_bytes()), " in files, ", HumanBytes(next.mapped_bytes()), " in memory.\n");
  }
  if (stats.room().has_languages()) {
    absl::StrAppend(&out, "Room for ", GroupDigits(stats.room().languages()),
                    " more: ", HumanBytes(stats.room().free_bytes()), " are free of the ",
                    stats.room().basis() == "language_memory" ? "languages' memory budget"
                    : stats.room().basis() == "cgroup"        ? "control group's memory"
                                                              : "machine's memory",
                    ".\n");
  }
  if (!stats.plans().empty()) {
    Table plans({"attention as", "Q, K, V", "saving", "formula"}, {kLeft, kRight, kRight, kLeft});
    for (const v1::PlanParameters& plan : stats.plans()) {
      plans.Row({plan.plan(), GroupDigits(plan.parameters()), Percent(plan.saving()), plan.formula()});
    }
    absl::StrAppend(&out, "\n", plans.Text());
  }
  return out;
}

std::string ServerReport(const v1::GetServerStatsResponse& stats) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"server version", stats.version()},
      {"up", absl::StrFormat("%.0f s", stats.uptime_seconds())},
      {"process memory", HumanBytes(stats.process_resident_bytes())},
      {"requests in flight", GroupDigits(stats.inflight_requests())},
      {"requests finished", GroupDigits(stats.finished_requests())},
  };
  if (stats.draining()) rows.push_back({"draining", "yes: finishes what it has"});
  const std::map<std::string, int64_t> rejected(stats.rejected().begin(), stats.rejected().end());  // in order
  for (const auto& [reason, count] : rejected) {
    if (count > 0) rows.push_back({absl::StrCat("rejected, ", reason), GroupDigits(count)});
  }
  std::string out = absl::StrCat("Server\n\n", KeyValues(rows));
  for (const v1::ModelStats& model : stats.models()) {
    const v1::EngineStats& engine = model.engine();
    const v1::LanguageStats& languages = model.languages();
    absl::StrAppend(
        &out, "\nLanguages of ", model.model(), "\n\n",
        KeyValues({
            {"loaded", absl::StrCat(languages.loaded(), ", ", languages.cold(), " cold, ", languages.loading(),
                                    " loading, ", languages.draining(), " draining, ", languages.failed(), " failed")},
            {"memory", languages.budget_bytes() > 0 ? absl::StrCat(HumanBytes(languages.used_bytes()), " of ",
                                                                   HumanBytes(languages.budget_bytes()))
                                                    : absl::StrCat(HumanBytes(languages.used_bytes()), ", no bound")},
            {"since start", absl::StrCat(GroupDigits(languages.loads()), " loads, ", GroupDigits(languages.failures()),
                                         " failures, ", GroupDigits(languages.evictions()), " evictions")},
            {"requests waiting", GroupDigits(languages.waiting())},
        }));
    absl::StrAppend(
        &out, "\nEngine of ", model.model(), "\n\n",
        KeyValues({
            {"workers x threads", absl::StrCat(engine.workers(), " x ", engine.threads())},
            {"queue, sentences", Of(model.queue_items(), model.queue_items_limit())},
            {"queue, tokens", Of(model.queue_tokens(), model.queue_tokens_limit())},
            {"queue, oldest", Seconds(model.queue_oldest_seconds())},
            {"computing now", GroupDigits(model.live_jobs())},
            {"accepted, unanswered", Of(model.permits_in_use(), model.permits_limit())},
            {"decoder steps", GroupDigits(engine.steps())},
            {"rows per step", absl::StrFormat("%.2f mean, %d most, %d allowed", engine.mean_step_rows(),
                                              engine.max_step_rows(), engine.max_batch_rows())},
            {"languages per step",
             absl::StrFormat("%.2f mean, %d most", engine.mean_step_languages(), engine.max_step_languages())},
            {"tokens encoded", GroupDigits(engine.encoded_tokens())},
            {"tokens generated", GroupDigits(engine.generated_tokens())},
            {"sentences", absl::StrCat(GroupDigits(engine.finished()), " finished, ", GroupDigits(engine.cancelled()),
                                       " cancelled, ", GroupDigits(engine.expired()), " expired, ",
                                       GroupDigits(engine.failed()), " failed")},
            {"multiply-adds", absl::StrFormat("%.3g", static_cast<double>(engine.multiply_adds()))},
            {"output tables read", HumanBytes(engine.table_bytes())},
            {"attention cache, most", HumanBytes(engine.kv_cache_bytes())},
        }));
  }
  return out;
}

std::string LanguagesReport(const v1::ListLanguagesResponse& languages) {
  // Native names last: scripts of other widths cannot push a column aside there.
  Table table({"code", "name", "state", "script", "direction", "vocabulary", "parameters", "memory", "adapter",
               "adapters", "aliases", "native name"},
              {kLeft, kLeft, kLeft, kLeft, kLeft, kRight, kRight, kRight, kLeft, kLeft, kLeft, kLeft});
  for (const v1::Language& language : languages.languages()) {
    table.Row({language.code(), language.name(),
               absl::StrCat(StateName(language.state()), language.pinned() ? ", pinned" : ""), language.script(),
               language.direction(), GroupDigits(language.vocabulary()), GroupDigits(language.parameters()),
               HumanBytes(language.memory_bytes()), language.default_adapter(), absl::StrJoin(language.adapters(), " "),
               absl::StrJoin(language.aliases(), " "), language.native_name()});
  }
  if (languages.languages().empty()) return "This model has no languages: leave them out of requests.\n";
  std::string out = table.Text();
  for (const v1::Language& language : languages.languages()) {
    if (!language.failure().empty()) absl::StrAppend(&out, "\n", language.code(), ": ", language.failure(), "\n");
  }
  return out;
}

std::string LanguageLine(const v1::Language& language) {
  return absl::StrCat(language.code(), ": ", StateName(language.state()), language.pinned() ? ", pinned" : "", ", ",
                      HumanBytes(language.memory_bytes()), "\n");
}

std::string RescanReport(const v1::RescanLanguagesResponse& rescan) {
  std::string out;
  for (const v1::ModelRescan& model : rescan.models()) {
    const auto list = [](const google::protobuf::RepeatedPtrField<std::string>& codes) {
      return codes.empty() ? std::string("none") : absl::StrJoin(codes, " ");
    };
    std::vector<std::pair<std::string, std::string>> rows = {{"model", model.model()},
                                                             {"added", list(model.added())},
                                                             {"replaced", list(model.replaced())},
                                                             {"removed", list(model.removed())}};
    for (const v1::BrokenLanguage& broken : model.broken()) {
      rows.push_back({absl::StrCat("broken, ", broken.language()), broken.failure()});
    }
    absl::StrAppend(&out, out.empty() ? "" : "\n", KeyValues(rows));
  }
  return out;
}

namespace {

std::string PromptsText(const v1::GetModelInfoResponse& info) {
  // By name: a map has no order of its own.
  const std::map<std::string, std::string> prompts(info.prompts().begin(), info.prompts().end());
  const std::string text = absl::StrJoin(prompts, ", ", [&](std::string* to, const auto& prompt) {
    absl::StrAppend(to, prompt.first, prompt.first == info.default_prompt() ? " (default)" : "", " \"", prompt.second,
                    "\"");
  });
  return text.empty() ? "none" : text;
}

std::string GenerationText(const v1::GenerationDefaults& defaults) {
  std::vector<std::string> parts;
  if (defaults.has_beam_size()) parts.push_back(absl::StrCat("beam ", defaults.beam_size()));
  if (defaults.has_length_penalty()) parts.push_back(absl::StrCat("length penalty ", defaults.length_penalty()));
  if (defaults.has_early_stopping()) {
    constexpr const char* kRules[] = {"false", "true", "never"};
    const int rule = defaults.early_stopping();
    parts.push_back(absl::StrCat("early stopping ", rule >= 0 && rule < 3 ? kRules[rule] : "?"));
  }
  if (defaults.has_max_tokens()) parts.push_back(absl::StrCat("at most ", defaults.max_tokens(), " tokens"));
  if (defaults.has_min_tokens()) parts.push_back(absl::StrCat("at least ", defaults.min_tokens(), " tokens"));
  if (!defaults.suppressed().empty()) {
    parts.push_back(absl::StrCat("never ", absl::StrJoin(defaults.suppressed(), " ")));
  }
  if (defaults.forced_end()) parts.push_back("end mark forced at the last token");
  return parts.empty() ? "the server's defaults" : absl::StrJoin(parts, ", ");
}

}  // namespace

std::string ModelReport(const v1::GetModelInfoResponse& info) {
  const v1::Architecture& a = info.architecture();
  const v1::Limits& limits = info.limits();
  const std::string zero_shot = absl::StrJoin(
      info.zero_shot_pairs(), " ",
      [](std::string* to, const v1::LanguagePair& pair) { absl::StrAppend(to, pair.source(), ">", pair.target()); });
  return KeyValues({
      {"model", info.model()},
      {"name", info.name()},
      {"license", info.license()},
      {"tasks", absl::StrJoin(info.tasks(), ", ")},
      {"parameters", GroupDigits(info.parameters())},
      {"languages", absl::StrCat(info.languages())},
      {"precision", absl::StrCat(info.precision(), " (", info.matmul_backend(), ")")},
      {"loaded in", Seconds(info.load_seconds())},
      {"architecture", absl::StrFormat("%s, %d + %d layers, width %d, feed-forward %d", a.kind(), a.encoder_layers(),
                                       a.decoder_layers(), a.d_model(), a.d_ffn())},
      {"heads",
       absl::StrFormat("%d of width %d, %d of them the language's own", a.heads(), a.d_head(), a.language_heads())},
      {"layers of languages",
       absl::StrFormat("encoder [%s], decoder [%s]", absl::StrJoin(a.language_encoder_layers(), " "),
                       absl::StrJoin(a.language_decoder_layers(), " "))},
      {"embedding", absl::StrCat(a.shared_embedding() ? "one table for all" : "one table per language",
                                 a.tied_output() ? ", tied to the output" : ", output of its own")},
      {"sentence vectors", absl::StrCat(info.embedding_size(), " numbers, ", info.pooling(),
                                        info.normalize() ? ", normalised" : ", not normalised")},
      {"prompts", PromptsText(info)},
      {"where requests are silent", GenerationText(info.generation())},
      {"limits of a request",
       absl::StrCat(GroupDigits(limits.max_items()), " items, ", GroupDigits(limits.max_characters()),
                    " characters each, ", HumanBytes(limits.max_message_bytes()), " a message")},
      {"limits of a text", absl::StrCat(GroupDigits(limits.max_source_tokens()), " tokens in, ",
                                        GroupDigits(limits.max_tokens()), " out, ", limits.max_beams(), " beams")},
      {"queue",
       absl::StrCat(GroupDigits(limits.queue_items()), " items, ", GroupDigits(limits.queue_tokens()), " tokens")},
      {"untrained directions", zero_shot.empty() ? "none" : zero_shot},
  });
}

double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0;
}

std::string CosineReport(const std::vector<std::string>& texts, const std::vector<std::vector<float>>& vectors) {
  std::vector<std::string> titles = {""};
  std::vector<Table::Align> aligns = {kRight};
  for (size_t i = 0; i < texts.size(); ++i) {
    titles.push_back(absl::StrCat(i + 1));
    aligns.push_back(kRight);
  }
  titles.push_back("text");
  aligns.push_back(kLeft);
  Table table(titles, aligns);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<std::string> row = {absl::StrCat(i + 1)};
    for (const auto& other : vectors) row.push_back(absl::StrFormat("%.4f", Cosine(vectors[i], other)));
    row.push_back(Cut(texts[i], 60));
    table.Row(std::move(row));
  }
  return table.Text();
}

std::string ToJson(const google::protobuf::Message& message) {
  // Errors may carry these as Any, which needs their descriptors to be linked.
  google::rpc::RetryInfo::descriptor();
  google::rpc::BadRequest::descriptor();
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string out;
  const auto status = google::protobuf::util::MessageToJsonString(message, &out, options);
  // Fails only for an Any of a type that this client does not know: newer than the client.
  if (!status.ok()) return absl::StrCat("{\"error\":\"the reply cannot be written as JSON by this version\"}");
  return out;
}

}  // namespace koine::cli
