// Protobuf messages of one shape from columns; see triosim/report/protobuf.py.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
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
};

// Bytes that are written from their end to their beginning: a message's length is known before it has to be written.
class MessageWriter {
public:
    MessageWriter(const std::vector<MessageField>& fields, std::size_t messages)
        : size_(most(fields) * messages), bytes_(new std::uint8_t[size_]), at_(bytes_.get() + size_) {
        for (std::size_t row = messages; row-- > 0;) put(fields, row);
    }

    const char* data() const { return reinterpret_cast<const char*>(at_); }
    std::size_t size() const { return static_cast<std::size_t>(bytes_.get() + size_ - at_); }

private:
    static constexpr std::size_t MOST_NUMBER = 10;

    static std::size_t most(const std::vector<MessageField>& fields) {
        std::size_t found = 0;
        for (const MessageField& field : fields) found += field.head.size() + MOST_NUMBER + most(field.inner);
        return found;
    }

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
            at_ -= field->head.size();
            std::memcpy(at_, field->head.data(), field->head.size());
        }
    }

    void number(std::uint64_t value) {
        const int bytes = value < 128 ? 1 : (std::bit_width(value) + 6) / 7;
        at_ -= bytes;
        for (int i = 0; i + 1 < bytes; ++i, value >>= 7) at_[i] = static_cast<std::uint8_t>(value | 128);
        at_[bytes - 1] = static_cast<std::uint8_t>(value);
    }

    void fixed(std::uint64_t value) {
        at_ -= 8;
        for (int i = 0; i < 8; ++i, value >>= 8) at_[i] = static_cast<std::uint8_t>(value);
    }

    std::size_t size_;
    std::unique_ptr<std::uint8_t[]> bytes_;
    std::uint8_t* at_;
};

}  // namespace triosim
