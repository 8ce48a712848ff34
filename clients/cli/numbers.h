// Checks of numeric flags whose errors say what would be right. CLI11's own take NaN for a number within every range,
// and call "1.5" out of the range of whole numbers.
#ifndef KOINE_CLIENTS_CLI_NUMBERS_H_
#define KOINE_CLIENTS_CLI_NUMBERS_H_

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace koine::cli {

inline CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= low && value <= high) {
          return std::string();
        }
        return absl::StrCat("must be a number from ", low, " to ", high, ", not ", text);
      },
      "");
}

inline CLI::Validator WholeBetween(int64_t low, int64_t high = std::numeric_limits<int32_t>::max()) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        int64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= low && value <= high) return std::string();
        return absl::StrCat("must be a whole number from ", low, " to ", high, ", not ", text);
      },
      "");
}

}  // namespace koine::cli

#endif  // KOINE_CLIENTS_CLI_NUMBERS_H_
