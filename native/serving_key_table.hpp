// A table from keys to numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace triosim::serving {

// From keys to 32 or 64 bits, by open addressing.
template <class Value>
class KeyTable {
public:
    KeyTable() : slots_(64) {}

    std::size_t size() const { return size_; }
    bool has(std::int64_t key) const { return slots_[place(key)].used; }
    Value& at(std::int64_t key) { return slots_[place(key)].value; }
    const Value& at(std::int64_t key) const { return slots_[place(key)].value; }

    // The value of a key, which is the given one if it had none.
    Value& emplace(std::int64_t key, Value value) {
        std::size_t at = place(key);
        if (!slots_[at].used) {
            if (2 * (size_ + 1) > slots_.size()) {
                grow();
                at = place(key);
            }
            slots_[at] = {key, value, true};
            ++size_;
        }
        return slots_[at].value;
    }

    void erase(std::int64_t key) {
        std::size_t hole = place(key);
        if (!slots_[hole].used) return;
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t next = (hole + 1) & mask; slots_[next].used; next = (next + 1) & mask) {
            const std::size_t home = hash(slots_[next].key) & mask;
            if (((next - home) & mask) >= ((next - hole) & mask)) {
                slots_[hole] = slots_[next];
                hole = next;
            }
        }
        slots_[hole].used = false;
        --size_;
    }

    template <class Visit>
    void each(Visit visit) const {
        for (const Slot& slot : slots_)
            if (slot.used) visit(slot.key, slot.value);
    }

private:
    struct Slot {
        std::int64_t key = 0;
        Value value{};
        bool used = false;
    };

    static std::size_t hash(std::int64_t key) {  // the finaliser of SplitMix64
        auto bits = static_cast<std::uint64_t>(key);
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
        bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
        return bits ^ (bits >> 31);
    }
    std::size_t place(std::int64_t key) const {
        const std::size_t mask = slots_.size() - 1;
        std::size_t at = hash(key) & mask;
        while (slots_[at].used && slots_[at].key != key) at = (at + 1) & mask;
        return at;
    }
    void grow() {
        std::vector<Slot> old(2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old)
            if (slot.used) slots_[place(slot.key)] = slot;
    }

    std::vector<Slot> slots_;
    std::size_t size_ = 0;
};

}  // namespace triosim::serving
