// Protobuf messages of one shape from columns; see triosim/report/protobuf.py.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace triosim {

enum class FieldKind : std::int64_t { number = 0, fixed = 1, nested = 2, same = 3 };

// A field of every message, or of those where `where` is not 0.
struct MessageField {
    FieldKind kind;
    std::string head;  // its tag; all of it where it is the same everywhere
    std::span<const std::int64_t> values;
    std::span<const std::uint8_t> where;
    std::vector<MessageField> inner;
    std::array<char, 8> last{};  // bytes of the head, if it has no more
};

// Bytes that are written from their end to their beginning: a message's length is known before it has to be written.
class MessageWriter {
public:
    MessageWriter(const std::vector<MessageField>& fields, std::size_t messages) : fields_(folded(fields)) {
        size_ = most(fields_) * messages + SPARE;
        bytes_ = room(size_);
        at_ = bytes_ + size_;
        for (std::size_t row = messages; row-- > 0;) put(fields_, row);
    }

    // Valid until this thread writes again.
    const char* data() const { return reinterpret_cast<const char*>(at_); }
    std::size_t size() const { return static_cast<std::size_t>(bytes_ + size_ - at_); }

private:
    static constexpr std::size_t MOST_NUMBER = 10, SPARE = 8, KEPT = std::size_t{1} << 23;

    // Memory that was written to before is at hand; much is not kept.
    static std::uint8_t* room(std::size_t size) {
        thread_local std::vector<std::uint8_t> kept;
        if (size > kept.size() || kept.size() > KEPT) kept = std::vector<std::uint8_t>(size);
        return kept.data();
    }

    static std::size_t most(const std::vector<MessageField>& fields) {
        std::size_t found = 0;
        for (const MessageField& field : fields) found += field.head.size() + MOST_NUMBER + most(field.inner);
        return found;
    }

    // What is the same in all messages is put together, the tag after it included.
    static std::vector<MessageField> folded(const std::vector<MessageField>& fields) {
        std::vector<MessageField> found;
        for (const MessageField& field : fields) {
            MessageField one = field;
            one.inner = folded(field.inner);
            const bool plain = one.inner.size() == 1 && same(one.inner.front());
            if (one.kind == FieldKind::nested && (one.inner.empty() || plain)) {
                const std::string inside = plain ? one.inner.front().head : "";
                one.kind = FieldKind::same;
                one.inner.clear();
                one.head += varint(inside.size()) + inside;
            }
            if (!found.empty() && same(found.back()) && one.where.empty()) {
                one.head = found.back().head + one.head;
                found.back() = std::move(one);
            } else {
                found.push_back(std::move(one));
            }
        }
        for (MessageField& field : found) {
            const std::size_t few = std::min(field.head.size(), field.last.size());
            std::copy(field.head.end() - static_cast<std::ptrdiff_t>(few), field.head.end(), field.last.end() - static_cast<std::ptrdiff_t>(few));
        }
        return found;
    }

    static std::string varint(std::uint64_t value) {
        std::string made;
        for (; value > 127; value >>= 7) made += static_cast<char>(value | 128);
        return made + static_cast<char>(value);
    }

    static bool same(const MessageField& field) { return field.kind == FieldKind::same && field.where.empty(); }

    void put(const std::vector<MessageField>& fields, std::size_t row) {
        for (auto field = fields.rbegin(); field != fields.rend(); ++field) {
            if (!field->where.empty() && !field->where[row]) continue;
            switch (field->kind) {
                case FieldKind::number: number(static_cast<std::uint64_t>(field->values[row])); break;
                case FieldKind::fixed: fixed(static_cast<std::uint64_t>(field->values[row])); break;
                case FieldKind::nested: {
                    const std::uint8_t* end = at_;
                    put(field->inner, row);
                    number(static_cast<std::uint64_t>(end - at_));
                    break;
                }
                case FieldKind::same: break;
            }
            before(*field);
        }
    }

    // Nearly every head is short: eight bytes are written at once, of which those in front are written over later.
    void before(const MessageField& field) {
        if (field.head.size() <= SPARE) {
            std::memcpy(at_ - SPARE, field.last.data(), SPARE);
        } else {
            std::memcpy(at_ - field.head.size(), field.head.data(), field.head.size());
        }
        at_ -= field.head.size();
    }

    void number(std::uint64_t value) {
        if (value < 128) {
            *--at_ = static_cast<std::uint8_t>(value);
            return;
        }
        const int bytes = (std::bit_width(value) + 6) / 7;
        at_ -= bytes;
        for (int i = 0; i + 1 < bytes; ++i, value >>= 7) at_[i] = static_cast<std::uint8_t>(value | 128);
        at_[bytes - 1] = static_cast<std::uint8_t>(value);
    }

    void fixed(std::uint64_t value) {
        at_ -= 8;
        for (int i = 0; i < 8; ++i, value >>= 8) at_[i] = static_cast<std::uint8_t>(value);
    }

    std::vector<MessageField> fields_;
    std::size_t size_ = 0;
    std::uint8_t *bytes_ = nullptr, *at_ = nullptr;
};

}  // namespace triosim
