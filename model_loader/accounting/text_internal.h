// Private: numbers and tables as people read them.
#ifndef KOINE_MODEL_LOADER_ACCOUNTING_TEXT_INTERNAL_H_
#define KOINE_MODEL_LOADER_ACCOUNTING_TEXT_INTERNAL_H_

#include <cstdint>
#include <string>
#include <vector>

namespace koine::model_loader {

// "3,774,873,600", "-1,000".
std::string Grouped(int64_t value);
// "14.06 GiB": four significant digits, binary units; whole bytes below 1 KiB.
std::string HumanBytes(int64_t bytes);
// 0.995 -> "99.50 %".
std::string Percent(double ratio);

// A table of text: the first column is left-aligned, the others right-aligned.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  // Short rows are filled up with empty cells.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // A line across before the next row.
  void Rule() { rules_.push_back(rows_.size()); }
  std::string Render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> rules_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_ACCOUNTING_TEXT_INTERNAL_H_
