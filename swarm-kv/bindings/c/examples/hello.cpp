// Opens a pool, and uses it.
//
//   c++ -std=c++17 hello.cpp $(pkg-config --cflags --libs swarm) -o hello && ./hello /dev/shm/pool
#include <iostream>
#include <swarm.hpp>
#include <vector>

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: hello POOL\n";
        return 2;
    }
    try {
        swarm::store db(argv[1]);
        db.put("color", "green");
        if (!db.insert("color", "red")) std::cout << "there is a color already\n";
        if (auto color = db.get("color")) std::cout << "the color is " << *color << "\n";
        else std::cout << "another process has deleted it already\n";

        for (auto keys = db.keys("co"); auto key = keys.next();) std::cout << "there is a key: " << *key << "\n";

        // Several at a time: submitted first, and polled for.
        std::vector<swarm::operation> puts;
        for (int user = 0; user < 10; user++)
            puts.push_back(db.submit_put("user:" + std::to_string(user), "value " + std::to_string(user)));
        for (auto &put : puts)
            while (!put.poll()) { /* something else */ }
        auto get = db.submit_get("user:7");
        get.wait();
        if (auto value = get.value()) std::cout << "user:7 has " << *value << "\n";
    } catch (const swarm::error &error) {
        std::cerr << "hello: " << swarm_status_name(error.status()) << ": " << error.what() << "\n";
        return 3;
    }
}
