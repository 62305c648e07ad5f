#include "budget/record_layout.h"

#include <cstring>

namespace kvcached::budget {

std::string Row::instance() const {
  std::string text;
  for (const Word& word : name) {
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return text.substr(0, text.find('\0'));
}

void Row::set_instance(const std::string& text) {
  char padded[kNameBytes] = {};
  std::memcpy(padded, text.data(), text.size());
  for (std::size_t i = 0; i < sizeof(padded) / sizeof(Word); ++i) {
    std::uint64_t value;
    std::memcpy(&value, padded + i * sizeof(value), sizeof(value));
    name[i].store(value, std::memory_order_relaxed);
  }
}

void Row::clear() {
  taken.store(0);
  for (Word* field : {&rank, &weight, &pid, &start_time, &limit, &floor, &claim, &lease, &created,
                      &want, &idle}) {
    field->store(0);
  }
  set_instance("");
}

}  // namespace kvcached::budget
