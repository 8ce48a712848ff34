#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "model_loader/importer/importer.h"

namespace koine::model_loader {
namespace {

// "176.2 M"
std::string Short(int64_t number) {
  constexpr double kThousand = 1e3;
  const auto value = static_cast<double>(number);
  if (value >= kThousand * kThousand * kThousand) return absl::StrFormat("%.2f G", value / 1e9);
  if (value >= kThousand * kThousand) return absl::StrFormat("%.1f M", value / 1e6);
  if (value >= kThousand) return absl::StrFormat("%.1f k", value / 1e3);
  return absl::StrCat(number);
}

// A list that may have thousands of entries.
std::string Cut(const std::vector<std::string>& items, size_t most) {
  const size_t shown = std::min(items.size(), most);
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < items.size() ? absl::StrCat(", and ", items.size() - shown, " more") : "");
}

// " a, b, c", in lines that stay narrow, each under the first column of values.
std::string Wrapped(const std::vector<std::string>& items) {
  constexpr size_t kWidth = 110;
  constexpr size_t kIndent = 13;
  std::string text;
  size_t column = 2 * kIndent;  // what stands before it
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t length = items[i].size() + 2;
    if (column + length > kWidth) {
      absl::StrAppend(&text, "\n", std::string(kIndent - 1, ' '));
      column = kIndent;
    }
    absl::StrAppend(&text, " ", items[i], i + 1 < items.size() ? "," : "");
    column += length;
  }
  return text;
}

}  // namespace

std::string Render(const ImportReport& report) {
  std::string text = absl::StrCat(report.name, ": ", report.family, ", written to ", report.out, "\n");
  absl::StrAppend(&text, "  tensors    ", report.tensors, ", ", Short(report.parameters), " parameters, ",
                  Short(report.bytes), "B\n");
  absl::StrAppend(
      &text, "  table      ", report.rows, " rows for ", report.pieces, " ids, ", Short(report.table_bytes), "B",
      report.pieces < report.rows ? absl::StrCat("; the last ", report.rows - report.pieces, " can never be generated")
                                  : "",
      "\n");
  if (report.multiply_adds > 0 && !report.sliced) {
    absl::StrAppend(&text, "  work       ", Short(report.multiply_adds), " multiply-adds per decoded token\n");
  }
  if (report.tied.size() > 1) absl::StrAppend(&text, "  tied       ", absl::StrJoin(report.tied, " = "), "\n");
  if (!report.dropped.empty()) {
    absl::StrAppend(&text, "  dropped    ", report.dropped.size(), ": ", Cut(report.dropped, 100), "\n");
  }
  if (!report.ignored.empty()) {
    absl::StrAppend(&text, "  not needed ", report.ignored.size(), ": ", Cut(report.ignored, 10), "\n");
  }
  for (const std::string& note : report.notes) absl::StrAppend(&text, "  note       ", note, "\n");
  if (report.languages.empty()) {
    absl::StrAppend(&text, "  languages  none: requests name none\n");
  } else if (!report.sliced) {
    std::vector<std::string> codes;
    for (const LanguageReport& language : report.languages) codes.push_back(language.code);
    absl::StrAppend(&text, "  languages  ", codes.size(), ", one table for all:", Wrapped(codes), "\n");
  } else {
    absl::StrAppendFormat(&text, "  %-14s %9s %7s %10s %22s %22s\n", "language", "rows", "", "bytes",
                          "multiply-adds/token", "unencodable pieces");
    for (const LanguageReport& language : report.languages) {
      const std::string work = language.multiply_adds == 0
                                   ? "-"
                                   : absl::StrCat(Short(report.multiply_adds), " -> ", Short(language.multiply_adds));
      // Before and after, of the sample's pieces.
      const std::string unknown =
          language.sample_pieces == 0
              ? "no sample"
              : absl::StrCat(language.unknown_whole, " -> ", language.unknown_slice, " of ", language.sample_pieces);
      absl::StrAppendFormat(&text, "  %-14s %9d %6.1f%% %9sB %22s %22s\n", language.code, language.rows,
                            100.0 * static_cast<double>(language.rows) / static_cast<double>(report.rows),
                            Short(language.table_bytes), work, unknown);
    }
    int64_t dropped = report.rows;
    for (const LanguageReport& language : report.languages) dropped = std::min(dropped, report.rows - language.rows);
    absl::StrAppend(&text, "  dropped    at least ", dropped, " of ", report.rows, " rows in every language\n");
  }
  return absl::StrCat(text, "\n", report.account);
}

}  // namespace koine::model_loader
