// Plays flows in SimGrid: max-min sharing, no latency, no TCP effects.  Used by benchmarks/engine.py and
// tests/golden/make_simgrid.py; needs Debian's libsimgrid-dev:
//
//     g++ -O2 -std=c++17 simgrid.cpp -lsimgrid
//
// Reads  LINKS HOSTS ROUTES FLOWS,  the capacity of each link in bytes per second,  for each route two hosts, the number
// of links and the links,  and for each flow its start in seconds, its route and its bytes, in the order of starts.
// Writes the CPU seconds of the run, and the end of each flow.
#include <simgrid/s4u.hpp>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

struct Flow {
    double start;
    int route;
    double bytes;
};

int main(int argc, char* argv[]) {
    sg::Engine engine(&argc, argv);
    for (const char* option : {"network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0",
                               "network/bandwidth-factor:1", "network/latency-factor:1", "network/weight-S:0",
                               "maxmin/precision:1e-12", "surf/precision:1e-12"}) {
        sg::Engine::set_config(option);
    }
    std::ios::sync_with_stdio(false);
    int links = 0, hosts = 0, routes = 0, flows = 0;
    std::cin >> links >> hosts >> routes >> flows;
    auto* zone = sg::create_full_zone("zone");
    std::vector<sg::Link*> link(links);
    for (int i = 0; i < links; ++i) {
        double capacity = 0;
        std::cin >> capacity;
        link[i] = zone->create_link("l" + std::to_string(i), capacity)->set_latency(0)->seal();
    }
    std::vector<sg::Host*> host(hosts);
    for (int i = 0; i < hosts; ++i) host[i] = zone->create_host("h" + std::to_string(i), 1e9)->seal();
    std::vector<std::pair<sg::Host*, sg::Host*>> ends(routes);
    for (auto& [from, to] : ends) {
        int a = 0, b = 0, count = 0;
        std::cin >> a >> b >> count;
        std::vector<sg::LinkInRoute> crossed;
        for (int i = 0; i < count; ++i) {
            int number = 0;
            std::cin >> number;
            crossed.emplace_back(link[number]);
        }
        from = host[a];
        to = host[b];
        zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, crossed, false);
    }
    zone->seal();
    std::vector<Flow> flow(flows);
    for (auto& one : flow) std::cin >> one.start >> one.route >> one.bytes;

    std::vector<sg::CommPtr> comms;
    sg::Actor::create("sender", host[0], [&] {
        for (const auto& one : flow) {
            if (one.start > sg::Engine::get_clock()) sg::this_actor::sleep_until(one.start);
            const auto& [from, to] = ends[one.route];
            comms.push_back(sg::Comm::sendto_async(from, to, static_cast<uint64_t>(one.bytes)));
        }
        sg::Comm::wait_all(comms);
    });
    const std::clock_t begin = std::clock();
    engine.run();
    std::printf("%.6f\n", static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    for (const auto& comm : comms) std::printf("%.17g\n", comm->get_finish_time());
}
