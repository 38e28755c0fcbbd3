// Lines of text into which whole numbers are put; see triosim/report/lines.py.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace triosim {

// A text with places for numbers, in Python's notation: %d, %06d (filled up with zeros), %.0s (takes a number and
// writes nothing), %% (a percent sign).
class LineForm {
public:
    explicit LineForm(std::string_view text) {
        std::string literal;
        for (std::size_t at = 0; at < text.size(); ++at) {
            if (text[at] != '%') {
                literal += text[at];
                continue;
            }
            if (++at < text.size() && text[at] == '%') {
                literal += '%';
                continue;
            }
            Place place;
            if (text.substr(at, 3) == ".0s") {
                at += 2;
                place.shown = false;
            } else {
                if (at < text.size() && text[at] == '0')
                    for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9' && place.width < WIDEST; ++at)
                        place.width = 10 * place.width + static_cast<std::size_t>(text[at] - '0');
                if (at >= text.size() || text[at] != 'd' || place.width > WIDEST)
                    throw std::invalid_argument("a line has a place that is neither %d, %0Nd, %.0s nor %%");
            }
            most_ += literal.size() + WIDEST;
            place.before = std::move(literal);
            literal.clear();
            places_.push_back(std::move(place));
        }
        most_ += literal.size();
        after_ = std::move(literal);
    }

    std::size_t places() const { return places_.size(); }
    std::size_t most() const { return most_; }

    // Writes the line of a row to `to`, where most() bytes have room; returns its end.
    char* put(const std::vector<std::span<const std::int64_t>>& numbers, std::size_t row, char* to) const {
        for (std::size_t i = 0; i < places_.size(); ++i) {
            const Place& place = places_[i];
            to = copied(place.before, to);
            if (place.shown) to = number(numbers[i][row], place.width, to);
        }
        return copied(after_, to);
    }

private:
    static constexpr std::size_t WIDEST = 24;  // more than a number of 64 bits with its sign

    struct Place {
        std::string before;
        std::size_t width = 0;
        bool shown = true;
    };

    static char* copied(const std::string& text, char* to) {
        std::memcpy(to, text.data(), text.size());
        return to + text.size();
    }

    static char* number(std::int64_t value, std::size_t width, char* to) {
        if (width == 6 && value >= 0 && value < 1'000'000) return six(static_cast<std::uint32_t>(value), to);
        if (width) {
            char digits[WIDEST];
            const bool below = value < 0;
            const std::uint64_t size = below ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
            const auto end = std::to_chars(digits, digits + WIDEST, size).ptr;
            const auto many = static_cast<std::size_t>(end - digits);
            if (below) *to++ = '-';
            for (std::size_t i = many + below; i < width; ++i) *to++ = '0';
            return std::copy(digits, end, to);
        }
        return std::to_chars(to, to + WIDEST, value).ptr;
    }

    // Parts of a microsecond, which every time has.
    static char* six(std::uint32_t value, char* to) {
        for (int i = 5; i >= 0; --i, value /= 10) to[i] = static_cast<char>('0' + value % 10);
        return to + 6;
    }

    std::vector<Place> places_;
    std::string after_;
    std::size_t most_ = 0;
};

// Text that grows, and keeps its room when it begins anew.
class LineBuffer {
public:
    void clear() { used_ = 0; }

    void add(const LineForm& form, const std::vector<std::span<const std::int64_t>>& numbers, std::size_t row,
             std::string_view between) {
        if (used_ + form.most() + between.size() > text_.size())
            text_.resize(2 * text_.size() + form.most() + between.size());
        char* to = text_.data() + used_;
        if (used_) to += between.copy(to, between.size());
        used_ = static_cast<std::size_t>(form.put(numbers, row, to) - text_.data());
    }

    std::string_view text() const { return {text_.data(), used_}; }

private:
    std::vector<char> text_;
    std::size_t used_ = 0;
};

// Which form each kind of row has, found by the numbers that tell the kinds apart.
class KindTable {
public:
    explicit KindTable(std::size_t columns) : columns_(columns), slots_(64, NONE) {}

    std::size_t columns() const { return columns_; }

    // The number of a kind, or NONE; `key` has columns() numbers.
    std::size_t find(const std::int64_t* key) const { return slots_[slot(key)]; }

    void add(const std::int64_t* key) {
        keys_.insert(keys_.end(), key, key + columns_);
        if (2 * ++kinds_ > slots_.size()) {
            slots_.assign(2 * slots_.size(), NONE);
            for (std::size_t kind = 0; kind < kinds_; ++kind) slots_[slot(keys_.data() + kind * columns_)] = kind;
        } else {
            slots_[slot(key)] = kinds_ - 1;
        }
    }

    static constexpr std::size_t NONE = ~std::size_t{0};

private:
    std::size_t slot(const std::int64_t* key) const {
        std::uint64_t hash = 0x9E3779B97F4A7C15;
        for (std::size_t i = 0; i < columns_; ++i) {
            hash = (hash ^ static_cast<std::uint64_t>(key[i])) * 0xBF58476D1CE4E5B9;
            hash ^= hash >> 29;
        }
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = hash & mask;
        while (slots_[at] != NONE && !std::equal(key, key + columns_, keys_.data() + slots_[at] * columns_))
            at = (at + 1) & mask;
        return at;
    }

    std::size_t columns_, kinds_ = 0;
    std::vector<std::int64_t> keys_;
    std::vector<std::size_t> slots_;
};

}  // namespace triosim
