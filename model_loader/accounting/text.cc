#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "model_loader/accounting/text_internal.h"

namespace koine::model_loader {

std::string Grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  const size_t sign = value < 0 ? 1 : 0;
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string HumanBytes(int64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 999.95 would print as 1000.0: the next unit is shorter.
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%d B", bytes);
  return absl::StrFormat("%.*f %s", value < 10 ? 3 : value < 100 ? 2 : 1, value, kUnits[unit]);
}

std::string Percent(double ratio) { return absl::StrFormat("%.2f %%", 100 * ratio); }

std::string TextTable::Render() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  size_t width = widths.empty() ? 0 : 2 * (widths.size() - 1);
  for (const size_t column : widths) width += column;

  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (r == 1 || std::count(rules_.begin(), rules_.end(), r) > 0) text.append(width, '-').append("\n");
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < rows_[r].size() ? rows_[r][i] : "";
      const std::string fill(widths[i] - cell.size(), ' ');
      if (i == 0) {
        line.append(cell).append(fill);
      } else {
        line.append("  ").append(fill).append(cell);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace koine::model_loader
