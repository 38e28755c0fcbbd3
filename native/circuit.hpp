// Circuit switching, as triosim.engine.solvers.circuit, which tells the rules: a transfer needs a circuit between its two
// devices.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include "network.hpp"

namespace triosim {

// What each device has, and which links are the directions of one circuit.
class CircuitRules {
public:
    // ends: for each link the two devices that it joins, one link after another.
    CircuitRules(Tick setup_time, std::int64_t ports_each, Work buffer, Column<std::int32_t> ends)
        : setup(setup_time), ports(ports_each), receive_buffer(buffer), rank(ends.size() / 2), pair(rank.size()),
          target(rank.size()) {
        const std::size_t links = rank.size();
        const auto from = [&](std::size_t link) { return ends[2 * link]; };
        const auto to = [&](std::size_t link) { return ends[2 * link + 1]; };
        const auto both = [&](std::size_t link) {
            return std::array{std::min(from(link), to(link)), std::max(from(link), to(link))};
        };
        for (std::size_t link = 0; link < links; ++link) {
            target[link] = to(link);
            devices = std::max(devices, static_cast<std::size_t>(both(link)[1]) + 1);
        }
        std::vector<std::size_t> order(links);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::sort(order, {}, [&](std::size_t link) { return std::tuple(from(link), to(link), link); });
        for (std::size_t at = 0; at < links; ++at) rank[order[at]] = static_cast<std::int32_t>(at);
        std::ranges::sort(order, {}, [&](std::size_t link) { return std::tuple(both(link), link); });
        for (const std::size_t link : order) {
            if (joins.empty() || joins.back() != both(link)) {
                joins.push_back(both(link));
                first_.push_back(links_.size());
            }
            pair[link] = static_cast<std::int32_t>(joins.size() - 1);
            links_.push_back(static_cast<std::int32_t>(link));
        }
        first_.push_back(links_.size());
    }

    Column<std::int32_t> links_of(std::int32_t pair_of_devices) const {
        const auto at = static_cast<std::size_t>(pair_of_devices);
        return {links_.data() + first_[at], first_[at + 1] - first_[at]};
    }

    Tick setup;
    std::int64_t ports;
    Work receive_buffer;                             // 0 where it has no limit
    std::size_t devices = 0;
    std::vector<std::int32_t> rank;                  // of each link: by its devices, then its number
    std::vector<std::int32_t> pair, target;          // of each link: of its devices, and where it leads to
    std::vector<std::array<std::int32_t, 2>> joins;  // devices of each pair, the lower first; pairs ascend

private:
    std::vector<std::int32_t> links_;  // pair by pair
    std::vector<std::size_t> first_;   // of each pair
};

class Circuit : public Sharing {
public:
    // No route may cross more than one link that limits.
    Circuit(const Roads& roads, const CircuitRules& rules)
        : Sharing(roads), rules_(rules), users_(rules.rank.size()), circuits_(rules.joins.size()), held_(rules.devices),
          reserved_(rules.devices, 0), port_wanted_(rules.devices, 0), buffer_wanted_(rules.devices, 0) {
        alone_at_capacity = false;
    }

    Tick wake() override { return wake_; }

protected:
    void rates(Tick now, Column<Joining> joined, Column<std::int32_t> left, std::vector<Rated>& changed) override {
        touched_.clear();
        for (const std::int32_t slot : left) release(now, slot);
        const auto before = static_cast<std::ptrdiff_t>(waiting_.size());
        for (const Joining& flow : joined) ask(now, flow);
        std::sort(waiting_.begin() + before, waiting_.end());
        std::inplace_merge(waiting_.begin(), waiting_.begin() + before, waiting_.end());
        admit(now);
        wake_ = NEVER;
        std::erase_if(setting_up_, [&](std::int32_t pair) {
            const Tick ready = circuit(pair).ready;
            if (ready <= now) touch(pair);
            else wake_ = wake_ == NEVER ? ready : std::min(wake_, ready);
            return ready <= now;
        });
        for (const std::int32_t pair : touched_) {
            Standing& here = circuit(pair);
            here.touched = false;
            if (here.stands && here.ready <= now) share(pair, changed);
        }
    }

private:
    struct Request {  // a transfer that waits; in the order in which they are admitted
        Tick since;
        std::int32_t rank;
        std::int64_t bytes;
        std::int32_t slot, link;

        auto key() const { return std::tuple(since, rank, bytes); }
        bool operator<(const Request& other) const { return key() < other.key(); }
    };
    struct Standing {  // the circuit of a pair of devices, which may not be there
        Tick ready = 0, idle_since = 0;
        std::size_t users = 0;  // admitted to it
        bool stands = false, touched = false;
    };
    struct Using {
        std::int32_t link;
        std::size_t place;  // among the users of the link
        std::int64_t bytes, rate;
    };

    Standing& circuit(std::int32_t pair) { return circuits_[static_cast<std::size_t>(pair)]; }
    std::int32_t pair_of(std::int32_t link) const { return rules_.pair[static_cast<std::size_t>(link)]; }
    std::size_t target_of(std::int32_t link) const {
        return static_cast<std::size_t>(rules_.target[static_cast<std::size_t>(link)]);
    }
    const std::array<std::int32_t, 2>& devices(std::int32_t pair) const {
        return rules_.joins[static_cast<std::size_t>(pair)];
    }
    std::vector<std::int32_t>& held(std::int32_t device) { return held_[static_cast<std::size_t>(device)]; }
    bool limited() const { return rules_.receive_buffer > 0; }
    Work room(std::int64_t bytes) const { return limited() ? std::min(Work{bytes}, rules_.receive_buffer) : bytes; }

    void touch(std::int32_t pair) {
        if (!std::exchange(circuit(pair).touched, true)) touched_.push_back(pair);
    }

    void ask(Tick now, const Joining& flow) {
        const std::int32_t link = roads_.hops(flow.route).front().link;
        const auto bytes = static_cast<std::int64_t>((flow.work + WORK_PER_BYTE - 1) / WORK_PER_BYTE);
        const auto slot = static_cast<std::size_t>(flow.slot);
        if (slot >= using_.size()) using_.resize(std::max(slot + 1, 2 * using_.size()));
        using_[slot] = {link, 0, bytes, 0};
        waiting_.push_back({now, rules_.rank[static_cast<std::size_t>(link)], bytes, flow.slot, link});
    }

    // A transfer has ended.
    void release(Tick now, std::int32_t slot) {
        const Using& gone = using_[static_cast<std::size_t>(slot)];
        std::vector<std::int32_t>& users = users_[static_cast<std::size_t>(gone.link)];
        users[gone.place] = users.back();
        using_[static_cast<std::size_t>(users.back())].place = gone.place;
        users.pop_back();
        Standing& here = circuit(pair_of(gone.link));
        --here.users;
        here.idle_since = now;
        reserved_[target_of(gone.link)] -= room(gone.bytes);
        touch(pair_of(gone.link));
    }

    // Equal parts of each direction.
    void share(std::int32_t pair, std::vector<Rated>& changed) {
        for (const std::int32_t link : rules_.links_of(pair)) {
            const std::vector<std::int32_t>& users = users_[static_cast<std::size_t>(link)];
            if (users.empty()) continue;
            const std::int64_t capacity = roads_.capacity[static_cast<std::size_t>(link)];
            const std::int64_t rate = std::max<std::int64_t>(capacity / static_cast<std::int64_t>(users.size()), 1);
            for (const std::int32_t slot : users) {
                std::int64_t& known = using_[static_cast<std::size_t>(slot)].rate;
                if (rate != known) changed.push_back({slot, known = rate});
            }
        }
    }

    // Admit what can be; what cannot keeps for itself the ports and the buffer that it will need.
    void admit(Tick now) {
        ++round_;
        std::size_t kept = 0;
        for (std::size_t at = 0, end = 0; at < waiting_.size(); at = end) {
            while (end < waiting_.size() && waiting_[end].key() == waiting_[at].key()) ++end;
            const Request first = waiting_[at];
            const std::int32_t pair = pair_of(first.link);
            const std::size_t target = target_of(first.link);
            const bool has_port = !wants_port(pair) && (circuit(pair).stands || has_ports(pair));
            const Work needs = static_cast<Work>(end - at) * room(first.bytes);
            if (has_port && buffer_wanted_[target] != round_ && has_room(target, needs)) {
                use(now, pair, at, end);
                reserved_[target] += needs;
                continue;
            }
            while (at < end) waiting_[kept++] = waiting_[at++];
            if (!circuit(pair).stands) {
                for (const std::int32_t device : devices(pair)) port_wanted_[static_cast<std::size_t>(device)] = round_;
            }
            if (limited()) buffer_wanted_[target] = round_;
        }
        waiting_.resize(kept);
    }

    bool wants_port(std::int32_t pair) const {
        return std::ranges::any_of(devices(pair), [this](std::int32_t device) {
            return port_wanted_[static_cast<std::size_t>(device)] == round_;
        });
    }

    bool has_ports(std::int32_t pair) {
        return std::ranges::all_of(devices(pair), [this](std::int32_t device) {
            return static_cast<std::int64_t>(held(device).size()) < rules_.ports ||
                   std::ranges::any_of(held(device), [this](std::int32_t other) { return circuit(other).users == 0; });
        });
    }

    // One device's empty buffer takes in anything.
    bool has_room(std::size_t target, Work needs) const {
        return !limited() || reserved_[target] == 0 || reserved_[target] + needs <= rules_.receive_buffer;
    }

    void use(Tick now, std::int32_t pair, std::size_t at, std::size_t end) {
        if (!circuit(pair).stands) set_up(now, pair);
        circuit(pair).users += end - at;
        for (; at < end; ++at) {
            std::vector<std::int32_t>& users = users_[static_cast<std::size_t>(waiting_[at].link)];
            using_[static_cast<std::size_t>(waiting_[at].slot)].place = users.size();
            users.push_back(waiting_[at].slot);
        }
        touch(pair);
    }

    void set_up(Tick now, std::int32_t pair) {
        for (const std::int32_t device : devices(pair)) {
            if (static_cast<std::int64_t>(held(device).size()) == rules_.ports) tear_down_one(device);
        }
        Standing& here = circuit(pair);
        here.stands = true;
        here.ready = later(now, rules_.setup);
        for (const std::int32_t device : devices(pair)) held(device).push_back(pair);
        setting_up_.push_back(pair);
    }

    // Free a port: of the idle circuits the one that has been so longest, of equals the lowest-numbered.
    void tear_down_one(std::int32_t device) {
        std::int32_t longest = -1;
        for (const std::int32_t pair : held(device)) {
            if (circuit(pair).users > 0) continue;
            if (longest < 0 || std::pair(circuit(pair).idle_since, pair) <
                                   std::pair(circuit(longest).idle_since, longest)) {
                longest = pair;
            }
        }
        circuit(longest).stands = false;
        for (const std::int32_t end : devices(longest)) std::erase(held(end), longest);
    }

    const CircuitRules& rules_;
    std::vector<Using> using_;                      // by slot
    std::vector<std::vector<std::int32_t>> users_;  // of each link: slots
    std::vector<Standing> circuits_;                // of each pair
    std::vector<std::vector<std::int32_t>> held_;   // of each device: pairs whose circuits hold one of its ports
    std::vector<Work> reserved_;                    // of the buffer of each device, bytes
    std::vector<Request> waiting_;                  // in order
    std::vector<std::int32_t> setting_up_, touched_;  // pairs
    std::vector<std::int64_t> port_wanted_, buffer_wanted_;  // of each device: the last round in which somebody did
    std::int64_t round_ = 0;                                 // of admission
    Tick wake_ = NEVER;
};

}  // namespace triosim
