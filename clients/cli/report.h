// What people read: tables of replies, and numbers as text. Pure functions.
#ifndef KOINE_CLIENTS_CLI_REPORT_H_
#define KOINE_CLIENTS_CLI_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "koine/v1/koine.pb.h"

namespace koine::cli {

// A table in fixed-width text. Columns are two spaces apart; the last one is not padded, so lines have no blanks at
// their ends.
class Table {
 public:
  enum class Align { kLeft, kRight };

  Table(std::vector<std::string> titles, std::vector<Align> aligns);
  // REQUIRES as many cells as titles.
  void Row(std::vector<std::string> cells);
  void Rule();  // a line of dashes
  std::string Text() const;

 private:
  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> rows_;  // the first is the titles; an empty one is a rule
};

std::string GroupDigits(int64_t number);  // 1234567 -> "1,234,567"
std::string HumanBytes(int64_t bytes);    // 1536 -> "1.5 KiB"
std::string Percent(double share);        // 0.125 -> "12.5 %"

std::string ParametersReport(const v1::GetParameterStatsResponse& stats);
std::string ServerReport(const v1::GetServerStatsResponse& stats);
std::string LanguagesReport(const v1::ListLanguagesResponse& languages);
std::string RescanReport(const v1::RescanLanguagesResponse& rescan);
// "de: loaded, pinned, 5.8 MiB"
std::string LanguageLine(const v1::Language& language);
std::string ModelReport(const v1::GetModelInfoResponse& info);

// Cosine of each pair, with the texts (cut to fit) as row titles. Vectors of length 0 have cosine 0.
// REQUIRES vectors of one length, one for each text.
std::string CosineReport(const std::vector<std::string>& texts, const std::vector<std::vector<float>>& vectors);
double Cosine(const std::vector<float>& a, const std::vector<float>& b);

// proto3 JSON mapping on one line: snake_case names, defaults printed.
std::string ToJson(const google::protobuf::Message& message);

}  // namespace koine::cli

#endif  // KOINE_CLIENTS_CLI_REPORT_H_
