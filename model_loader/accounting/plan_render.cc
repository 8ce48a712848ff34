// A plan report as a table, as JSON and as a chart.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "model_loader/accounting/plan.h"
#include "model_loader/accounting/text_internal.h"
#include "nlohmann/json.hpp"

namespace koine::model_loader {
namespace {

using Json = nlohmann::ordered_json;

std::string FitText(const PlanRow& row) {
  if (row.any_number_fits) return "any";
  return row.languages_that_fit.has_value() ? Grouped(*row.languages_that_fit) : "";
}

std::string EscapeXml(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

Json ComponentsJson(const ComponentCounts& counts) {
  Json json = Json::object();
  for (size_t i = 0; i < kComponents; ++i) {
    if (counts[i] != 0) json[std::string(Name(static_cast<Component>(i)))] = counts[i];
  }
  return json;
}

}  // namespace

std::string RenderTable(const PlanReport& report) {
  const PlanShape& shape = report.shape;
  std::string text = absl::StrCat(shape.name.empty() ? "plan" : shape.name, shape.about.empty() ? "" : ": ",
                                  shape.about, "\nCounted: ", WhatIsCounted(shape), "\n");
  absl::StrAppend(&text, "N = ", Grouped(shape.languages), ", ");
  if (shape.encoder_layers > 0) absl::StrAppend(&text, shape.encoder_layers, " encoder layers, ");
  if (shape.decoder_layers > 0) {
    absl::StrAppend(&text, shape.decoder_layers, " decoder layers",
                    shape.cross_attention ? " (with cross-attention), " : ", ");
  }
  absl::StrAppend(&text, "H = ", shape.heads, " (", shape.heads - shape.language_heads, " shared + ",
                  shape.language_heads, " own), d = ", shape.d_model, ", d_k = ", shape.d_k, ", d_v = ", shape.d_v,
                  ", bytes as ", std::string(kernels::Name(shape.dtype)), "\n\n");

  // All of these succeeded for the whole report, or there were no report.
  const int64_t head = HeadParameters(shape, AttentionCount::kQkv).value_or(0);
  const int64_t head_o = HeadParameters(shape, AttentionCount::kQkvo).value_or(0);
  const int64_t block = BlockParameters(shape, AttentionCount::kQkv).value_or(0);
  const int64_t block_o = BlockParameters(shape, AttentionCount::kQkvo).value_or(0);
  TextTable units({"attention matrices", "Q, K, V", "with O"});
  units.Add({"one head of one layer", Grouped(head), Grouped(head_o)});
  units.Add({"one layer (all heads)", Grouped(block), Grouped(block_o)});
  text += units.Render() + "\n";

  std::vector<std::string> header = {"plan",         "attention QKV",  "with O", "saved",  "shared",
                                     "one language", "all parameters", "saved",  "memory", "+1 language"};
  if (report.budget.has_value()) header.push_back(absl::StrCat("fit in ", HumanBytes(*report.budget)));
  TextTable plans(std::move(header));
  for (const PlanRow& row : report.rows) {
    std::vector<std::string> cells = {row.plan,
                                      Grouped(row.attention_qkv),
                                      Grouped(row.attention_qkvo),
                                      Percent(row.attention_saving),
                                      Grouped(row.shared_parameters),
                                      Grouped(row.language_parameters),
                                      Grouped(row.total_parameters),
                                      Percent(row.saving),
                                      HumanBytes(row.total_bytes),
                                      HumanBytes(row.language_bytes)};
    if (report.budget.has_value()) cells.push_back(FitText(row));
    plans.Add(std::move(cells));
  }
  text += plans.Render() + "\n";

  TextTable components({"parameters, as given", "shared", "one language"});
  for (size_t i = 0; i < kComponents; ++i) {
    if (report.counts.shared[i] == 0 && report.counts.language[i] == 0) continue;
    components.Add({std::string(Name(static_cast<Component>(i))), Grouped(report.counts.shared[i]),
                    Grouped(report.counts.language[i])});
  }
  components.Rule();
  components.Add({"total", Grouped(report.counts.shared_total), Grouped(report.counts.language_total)});
  text += components.Render();
  return text;
}

std::string ToJson(const PlanReport& report) {
  const PlanShape& shape = report.shape;
  Json json;
  json["name"] = shape.name;
  json["about"] = shape.about;
  json["counted"] = WhatIsCounted(shape);
  json["shape"] = {
      {"languages", shape.languages},
      {"encoder_layers", shape.encoder_layers},
      {"decoder_layers", shape.decoder_layers},
      {"own_encoder_layers", shape.own_encoder_layers},
      {"own_decoder_layers", shape.own_decoder_layers},
      {"own_layer_scope", shape.scope == LayerScope::kLayer ? "layer" : "attention"},
      {"cross_attention", shape.decoder_layers > 0 && shape.cross_attention},
      {"heads", shape.heads},
      {"shared_heads", shape.heads - shape.language_heads},
      {"language_heads", shape.language_heads},
      {"d_model", shape.d_model},
      {"d_k", shape.d_k},
      {"d_v", shape.d_v},
      {"d_ffn", shape.d_ffn},
      {"gated_ffn", shape.gated_ffn},
      {"output_projection", shape.output_projection},
      {"linear_bias", shape.linear_bias},
      {"vocabulary", shape.vocabulary},
      {"shared_embedding", shape.shared_embedding},
      {"tied_output", shape.tied_output},
      {"output_bias", shape.output_bias},
      {"adapter", Name(shape.adapter.kind)},
      {"adapter_rank", shape.adapter.rank},
      {"dtype", std::string(kernels::Name(shape.dtype))},
  };
  json["head_parameters_qkv"] = HeadParameters(shape, AttentionCount::kQkv).value_or(0);
  json["head_parameters_qkvo"] = HeadParameters(shape, AttentionCount::kQkvo).value_or(0);
  json["layer_parameters_qkv"] = BlockParameters(shape, AttentionCount::kQkv).value_or(0);
  json["layer_parameters_qkvo"] = BlockParameters(shape, AttentionCount::kQkvo).value_or(0);
  json["components"] = {{"shared", ComponentsJson(report.counts.shared)},
                        {"language", ComponentsJson(report.counts.language)}};
  if (report.budget.has_value()) json["budget_bytes"] = *report.budget;
  json["plans"] = Json::array();
  for (const PlanRow& row : report.rows) {
    Json plan = {{"plan", row.plan},
                 {"attention_qkv", row.attention_qkv},
                 {"attention_qkvo", row.attention_qkvo},
                 {"attention_saving", row.attention_saving},
                 {"shared_parameters", row.shared_parameters},
                 {"language_parameters", row.language_parameters},
                 {"total_parameters", row.total_parameters},
                 {"saving", row.saving},
                 {"shared_bytes", row.shared_bytes},
                 {"language_bytes", row.language_bytes},
                 {"total_bytes", row.total_bytes}};
    if (report.budget.has_value()) {
      // null: any number fits, since a language costs nothing.
      plan["languages_that_fit"] = row.languages_that_fit.has_value() ? Json(*row.languages_that_fit) : Json(nullptr);
    }
    json["plans"].push_back(std::move(plan));
  }
  // Names come from model files: bytes that are no UTF-8 become U+FFFD instead of an exception.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::string> RenderSvgChart(const PlanReport& report, int64_t max_languages) {
  if (max_languages < 2) {
    return absl::InvalidArgumentError(absl::StrCat("a chart needs at least 2 languages, not ", max_languages));
  }
  // Okabe and Ito's palette: told apart by colour-blind readers too. Repeats are dashed.
  constexpr std::array<const char*, 7> kColours = {"#000000", "#d55e00", "#0072b2", "#009e73",
                                                   "#cc79a7", "#e69f00", "#56b4e9"};
  constexpr double kWidth = 960, kHeight = 540, kLeft = 90, kRight = 330, kTop = 60, kBottom = 60;
  constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

  // In double: a chart needs no exact bytes, and cannot overflow.
  const auto memory = [](const PlanRow& row, double n) {
    return static_cast<double>(row.shared_bytes) + n * static_cast<double>(row.language_bytes);
  };
  const double last = static_cast<double>(max_languages);
  double low = HUGE_VAL, high = 1;
  for (const PlanRow& row : report.rows) {
    low = std::min(low, std::max(1.0, memory(row, 1)));
    high = std::max(high, memory(row, last));
  }
  // Whole powers of ten around everything.
  const int first_power = static_cast<int>(std::floor(std::log10(std::min(low, high))));
  const int last_power = std::max(first_power + 1, static_cast<int>(std::ceil(std::log10(high))));
  const auto x_of = [&](double n) { return kLeft + kPlotWidth * (n - 1) / (last - 1); };
  const auto y_of = [&](double bytes) {
    const double power = std::log10(std::max(1.0, bytes));
    return kTop + kPlotHeight * (last_power - power) / (last_power - first_power);
  };

  const std::string name = EscapeXml(report.shape.name.empty() ? "plan" : report.shape.name);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n",
      kWidth, kHeight, kWidth, kHeight);
  absl::StrAppend(&svg, "<title>", name, ": memory against the number of languages</title>\n<desc>",
                  EscapeXml(WhatIsCounted(report.shape)),
                  "</desc>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
  absl::StrAppendFormat(&svg, "<text x=\"%.0f\" y=\"28\" font-size=\"16\">%s: memory against languages (%s)</text>\n",
                        kLeft, name, std::string(kernels::Name(report.shape.dtype)));
  for (int power = first_power; power <= last_power; ++power) {
    const double y = y_of(std::pow(10.0, power));
    absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", kLeft,
                          y, kLeft + kPlotWidth, y);
    constexpr std::array<const char*, 7> kUnits = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    const int unit = std::min(power / 3, static_cast<int>(kUnits.size()) - 1);
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.0f %s</text>\n", kLeft - 8, y + 4,
                          std::pow(10.0, power - 3 * unit), kUnits[static_cast<size_t>(unit)]);
  }
  constexpr int kTicks = 5;
  int64_t previous = 0;
  for (int tick = 0; tick <= kTicks; ++tick) {
    const int64_t n = 1 + static_cast<int64_t>(std::llround((last - 1) * tick / kTicks));
    if (n == previous) continue;
    previous = n;
    const double x = x_of(static_cast<double>(n));
    absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#888888\"/>\n", x,
                          kTop + kPlotHeight, x, kTop + kPlotHeight + 5);
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x,
                          kTop + kPlotHeight + 20, Grouped(n));
  }
  absl::StrAppendFormat(&svg,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
                        "stroke=\"#888888\"/>\n",
                        kLeft, kTop, kPlotWidth, kPlotHeight);
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">N, languages</text>\n",
                        kLeft + kPlotWidth / 2, kHeight - 18);

  for (size_t i = 0; i < report.rows.size(); ++i) {
    const PlanRow& row = report.rows[i];
    const char* colour = kColours[i % kColours.size()];
    const std::string dash = i < kColours.size() ? "" : " stroke-dasharray=\"6 4\"";
    std::string points;
    // A straight line is a curve on a logarithmic scale: 128 pieces are smooth at this width.
    constexpr int kPieces = 128;
    for (int piece = 0; piece <= kPieces; ++piece) {
      const double n = 1 + (last - 1) * piece / kPieces;
      absl::StrAppendFormat(&points, "%s%.1f,%.1f", piece == 0 ? "" : " ", x_of(n), y_of(memory(row, n)));
    }
    absl::StrAppend(&svg, "<polyline fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"", dash, " points=\"",
                    points, "\"><title>", EscapeXml(row.plan), "</title></polyline>\n");
    const double x = kLeft + kPlotWidth + 16, y = kTop + 10 + 22 * static_cast<double>(i);
    absl::StrAppendFormat(
        &svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", x, y,
        x + 24, y, colour, dash);
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 30, y + 4, EscapeXml(row.plan));
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace koine::model_loader
