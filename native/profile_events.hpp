// Where the events of a profile (Chrome-trace JSON) lie in its text, and the few numbers by which a step is chosen.
// The text comes in pieces and is not kept.  All of it is checked to be JSON; whatever is not as profilers write it is
// "odd", and is for a reader that takes everything apart.  See triosim/sources/readers/_events.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framed_column.hpp"

namespace triosim {

// Events of one kind, in the order of the file; what is not known of a kind is empty.
struct EventTable {
    FramedColumn offset, length;         // where it lies in the text
    FramedColumn start;                  // ns
    FramedColumn name;                   // row of the names
    FramedColumn duration;               // ns; of all but calls
    FramedColumn correlation;            // ties launches to what they launched
    FramedColumn device, stream;         // of work
    FramedColumn shaped, function;       // of calls: whether it has its inputs' shapes; its number in an execution trace
};

class ProfileEvents {
public:
    // With `functions` the numbers of calls in an execution trace are kept.
    explicit ProfileEvents(bool functions) : functions_(functions) {}

    EventTable calls, launches, works, modules;  // works: what ran on a device
    std::vector<std::string> names;                            // as they stand in the text, without quotes
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // offset and length of what else the file holds
    bool odd = false;

    // How many bytes of `text` have been understood; what follows must come again, with more behind it.  With `last`
    // nothing more comes.
    std::size_t feed(std::string_view text, bool last) {
        if (odd) return text.size();
        const char* done = begin_ = at_ = text.data();
        end_ = text.data() + text.size();
        try {
            while (unit()) done = at_;
            done = at_;
        } catch (const Odd&) {
            odd = true;
        } catch (const More&) {
            odd = last;
        }
        base_ += done - begin_;
        return static_cast<std::size_t>(done - begin_);
    }

    // The launch of each work, -1 for none: of launches of the same number the earliest, of equally early ones the first.
    std::vector<std::int32_t> launch_of_works() const {
        std::vector<std::int64_t> number(launches.correlation.size());
        launches.correlation.copy(number.data());
        std::vector<std::int32_t> order;
        for (std::size_t i = 0; i < number.size(); ++i)
            if (number[i] >= 0) order.push_back(static_cast<std::int32_t>(i));
        const auto before = [&](std::int32_t a, std::int32_t b) {
            if (number[a] != number[b]) return number[a] < number[b];
            const std::int64_t at = launches.start[a], other = launches.start[b];
            return at != other ? at < other : a < b;
        };
        if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
        std::vector<std::int32_t> found(works.correlation.size(), -1);
        for (std::size_t i = 0; i < found.size(); ++i) {
            const std::int64_t wanted = works.correlation[i];
            const auto at = std::lower_bound(order.begin(), order.end(), wanted,
                                             [&](std::int32_t a, std::int64_t b) { return number[a] < b; });
            if (wanted >= 0 && at != order.end() && number[*at] == wanted) found[i] = *at;
        }
        return found;
    }

private:
    struct Odd {};
    struct More {};
    enum Kind : std::uint8_t { call, launch, work, module, none };
    enum class Place { before, object, events, after };
    enum class Type : std::uint8_t { none, text, number, word, list, object };
    struct Value {
        Type type = Type::none;
        std::string_view text;  // of a text without quotes, of a number all of it
    };
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    static constexpr int deepest = 200;

    const char *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
    std::int64_t base_ = 0;
    bool functions_;
    Place place_ = Place::before;
    bool listed_ = false;  // the file is a list of events and nothing else
    bool first_ = true;    // nothing stands before in what is open
    bool seen_ = false;    // the events
    std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> known_;

    // --- the file ------------------------------------------------------------------------------------------------

    // One part of the file: its beginning, a key with its value, an event, an end.  False where all is read.
    bool unit() {
        if (place_ == Place::after) {
            blanks();
            if (at_ != end_) throw Odd{};
            return false;
        }
        const char open = next();
        if (place_ == Place::before) {
            if (open != '{' && open != '[') throw Odd{};
            ++at_;
            listed_ = open == '[';
            place_ = listed_ ? Place::events : Place::object;
            return true;
        }
        if (open == (place_ == Place::object ? '}' : ']')) {
            ++at_;
            close();
            return true;
        }
        if (!first_) {
            if (open != ',') throw Odd{};
            ++at_;
            next();
        }
        if (place_ == Place::object) {
            if (key_of_file()) return true;
        } else {
            event();
        }
        first_ = false;
        return true;
    }

    void close() {
        if (place_ == Place::events && !listed_) {
            place_ = Place::object;
            first_ = false;
            return;
        }
        if (!listed_ && !seen_) throw Odd{};
        place_ = Place::after;
    }

    // A key of the file; true if its events begin.
    bool key_of_file() {
        const char* from = at_;
        const std::string_view key = key_text();
        if (key == "traceEvents") {
            if (seen_ || next() != '[') throw Odd{};
            ++at_;
            seen_ = first_ = true;
            place_ = Place::events;
            return true;
        }
        value(0);
        parts.emplace_back(base_ + (from - begin_), at_ - from);
        return false;
    }

    // --- an event ------------------------------------------------------------------------------------------------

    struct Event {
        Value phase, category, name, pid, tid, start, duration, args;
        Value correlation, device, stream, function;
        bool shapes = false;
    };

    void event() {
        const char* from = at_;
        if (*at_ != '{') {
            value(0);
            return;
        }
        Event e;
        members([&](std::string_view key) {
            if (key == "args") {
                e.correlation = e.device = e.stream = e.function = {};
                e.shapes = false;
                arguments(e);
                return;
            }
            const Value found = value(1);
            if (key == "ph") e.phase = found;
            else if (key == "cat") e.category = found;
            else if (key == "name") e.name = found;
            else if (key == "pid") e.pid = found;
            else if (key == "tid") e.tid = found;
            else if (key == "ts") e.start = found;
            else if (key == "dur") e.duration = found;
        });
        keep(e, base_ + (from - begin_), at_ - from);
    }

    void arguments(Event& e) {
        if (next() != '{') {
            value(1);
            return;
        }
        members([&](std::string_view key) {
            const Value found = value(2);
            if (key == "correlation") e.correlation = found;
            else if (key == "device") e.device = found;
            else if (key == "stream") e.stream = found;
            else if (key == "Record function id") e.function = found;
            else if (key == "Input Dims" || key == "Input dims") {
                e.shapes = found.type == Type::list && found.text.find_first_not_of(" \t\n\r", 1) != found.text.size() - 1;
            }
        });
    }

    void keep(const Event& e, std::int64_t offset, std::int64_t length) {
        if (e.phase.type != Type::text || e.phase.text != "X") {
            if (e.phase.type == Type::text && e.phase.text.find('\\') != e.phase.text.npos) throw Odd{};
            return;
        }
        const Kind kind = kind_of(e.category, e.name);
        if (kind == none) return;
        const std::int64_t start = nanoseconds(e.start);
        const std::int64_t duration = e.duration.type == Type::none ? 0 : nanoseconds(e.duration);
        if (duration < 0 || launches.start.size() == INT32_MAX) throw Odd{};  // rows of launches have 32 bits
        EventTable& t = *std::array{&calls, &launches, &works, &modules}[kind];
        t.offset.push_back(offset);
        t.length.push_back(length);
        t.start.push_back(start);
        t.name.push_back(name_of(e.name));
        if (kind == call) {
            t.shaped.push_back(e.shapes);
            if (functions_) t.function.push_back(number(e.function));
            return;
        }
        t.duration.push_back(duration);
        const std::int64_t correlation = number(e.correlation);  // of modules only looked at
        if (kind != module) t.correlation.push_back(correlation);
        if (kind == work) {
            t.device.push_back(number(e.device.type == Type::none ? e.pid : e.device));
            t.stream.push_back(number(e.stream.type == Type::none ? e.tid : e.stream));
        }
    }

    static Kind kind_of(const Value& category, const Value& name) {
        if (category.type != Type::text) return none;
        std::string lower(category.text);
        for (char& c : lower) {
            if (c == '\\' || static_cast<unsigned char>(c) >= 128) throw Odd{};
            if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
        }
        const auto is = [&](auto... word) { return ((lower == word) || ...); };
        const std::string_view all = lower;
        if (is("cpu_op", "operator", "user_annotation")) return call;
        if (is("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset")) return work;
        if (all.ends_with("runtime") || all.ends_with("driver")) return launch;
        if (all != "python_function") return none;
        constexpr std::string_view begins = "nn.Module: ";
        if (name.type != Type::text) return none;
        if (name.text.substr(0, begins.size()).find('\\') != name.text.npos) throw Odd{};
        return name.text.starts_with(begins) && name.text.size() > begins.size() ? module : none;
    }

    std::int32_t name_of(const Value& name) {
        if (name.type != Type::text) throw Odd{};
        if (const auto found = known_.find(name.text); found != known_.end()) return found->second;
        const auto row = static_cast<std::int32_t>(names.size());
        names.emplace_back(name.text);
        known_.emplace(names.back(), row);
        return row;
    }

    // Whole nanoseconds from microseconds; half ones go to the even neighbour.
    static std::int64_t nanoseconds(const Value& value) {
        if (value.type != Type::number) throw Odd{};
        std::string_view text = value.text;
        const bool negative = text.front() == '-';
        if (negative) text.remove_prefix(1);
        std::int64_t found = 0;
        const std::size_t point = std::min(text.find('.'), text.size());
        if (point > 16 || text.size() > 26 || text.find_first_of("eE") != text.npos) throw Odd{};
        for (const char c : text.substr(0, point)) found = 10 * found + (c - '0');
        if (found > 9'000'000'000'000'000) throw Odd{};  // beyond 64 bits, or nearly
        const std::string_view fraction = point < text.size() ? text.substr(point + 1) : std::string_view{};
        for (std::size_t i = 0; i < 3; ++i) found = 10 * found + (i < fraction.size() ? fraction[i] - '0' : 0);
        if (fraction.size() > 3) {
            const char next = fraction[3];
            const bool more = fraction.find_first_not_of('0', 4) != fraction.npos;
            if (next > '5' || (next == '5' && (more || found % 2 != 0))) ++found;
        }
        return negative ? -found : found;
    }

    // An id that may be written as text, -1 for none.
    static std::int64_t number(const Value& value) {
        if (value.type == Type::none || value.type == Type::list || value.type == Type::object) return -1;
        std::string_view text = value.text;
        if (value.type == Type::word) {
            if (text == "true" || text == "false") throw Odd{};
            return -1;
        }
        if (value.type == Type::number && text.find_first_of(".eE") != text.npos) return -1;
        const bool negative = text.starts_with('-');
        if (negative) text.remove_prefix(1);
        const bool digits = text.find_first_not_of("0123456789") == text.npos;
        if (digits && !text.empty()) {
            if (text.size() > 18) throw Odd{};
            std::int64_t found = 0;
            for (const char c : text) found = 10 * found + (c - '0');
            return negative ? -found : found;
        }
        for (const char c : text) {  // a name, and no number in another form
            if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return -1;
        }
        if (text.empty() && !negative) return -1;
        throw Odd{};
    }

    // --- JSON ----------------------------------------------------------------------------------------------------

    void blanks() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    }

    char next() {
        blanks();
        if (at_ == end_) throw More{};
        return *at_;
    }

    // The members of an object that begins here; `member` reads the value of each.
    template <class Member>
    void members(Member&& member) {
        ++at_;
        if (next() == '}') {
            ++at_;
            return;
        }
        while (true) {
            next();
            const std::string_view key = key_text();
            next();
            member(key);
            const char c = next();
            ++at_;
            if (c == '}') return;
            if (c != ',') throw Odd{};
        }
    }

    // A key, without escapes, and the colon behind it.
    std::string_view key_text() {
        const std::string_view key = text();
        if (key.find('\\') != key.npos || next() != ':') throw Odd{};
        ++at_;
        next();
        return key;
    }

    Value value(int depth) {
        if (depth > deepest) throw Odd{};
        const char c = next();
        const char* from = at_;
        if (c == '"') return {Type::text, text()};
        if (c == '{') {
            members([&](std::string_view) { value(depth + 1); });
            return {Type::object, {from, at_}};
        }
        if (c == '[') {
            ++at_;
            if (next() == ']') {
                ++at_;
                return {Type::list, {from, at_}};
            }
            while (true) {
                value(depth + 1);
                const char then = next();
                ++at_;
                if (then == ']') return {Type::list, {from, at_}};
                if (then != ',') throw Odd{};
            }
        }
        if (c == '-' || (c >= '0' && c <= '9')) return digits();
        return word();
    }

    Value digits() {
        const char* from = at_;
        if (*at_ == '-') ++at_;
        if (at_ != end_ && *at_ == 'I') throw Odd{};
        const bool zero = at_ != end_ && *at_ == '0';
        const auto whole = run();
        if (whole == 0 || (zero && whole > 1)) throw Odd{};
        if (at_ != end_ && *at_ == '.') {
            ++at_;
            if (run() == 0) throw Odd{};
        }
        if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
            ++at_;
            if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
            if (run() == 0) throw Odd{};
        }
        if (at_ == end_) throw More{};
        if (at_ - from > 1000) throw Odd{};
        return {Type::number, {from, at_}};
    }

    std::ptrdiff_t run() {
        const char* from = at_;
        while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
        if (at_ == end_) throw More{};
        return at_ - from;
    }

    Value word() {
        const char* from = at_;
        for (const std::string_view known : {"true", "false", "null", "NaN", "Infinity"}) {
            if (*at_ != known.front()) continue;
            if (end_ - at_ < static_cast<std::ptrdiff_t>(known.size())) throw More{};
            if (std::string_view(at_, known.size()) != known) throw Odd{};
            at_ += known.size();
            return {Type::word, {from, at_}};
        }
        throw Odd{};
    }

    // What stands between the quotes; control characters pass, as in the files of some profilers.
    std::string_view text() {
        if (*at_ != '"') throw Odd{};
        const char* from = ++at_;
        while (true) {
            while (at_ != end_ && *at_ != '"' && *at_ != '\\') ++at_;
            if (at_ == end_) throw More{};
            if (*at_ == '"') return {from, at_++};
            escape();
        }
    }

    void escape() {
        if (end_ - at_ < 6) throw More{};
        const char c = at_[1];
        if (c == 'u') {
            for (int i = 2; i < 6; ++i) {
                const char h = at_[i];
                if (!((h >= '0' && h <= '9') || (h >= 'a' && h <= 'f') || (h >= 'A' && h <= 'F'))) throw Odd{};
            }
            at_ += 6;
        } else if (std::strchr("\"\\/bfnrt", c) != nullptr && c != '\0') {
            at_ += 2;
        } else {
            throw Odd{};
        }
    }
};

}  // namespace triosim
