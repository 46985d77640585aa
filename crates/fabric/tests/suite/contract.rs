//! Every transport is held to the same contract.

use samite_fabric::transport::Rma;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Link, Mask};
use samite_testkit::{
    TWO_NODES, contract, simulate, simulate_as, simulate_on, three_nodes, two_nodes, units,
};
use std::time::Duration;

/// Runs a case on so many nodes, if UCX is installed.
fn on_hosts(hosts: u32, name: &str, case: contract::Case) {
    if samite_testkit::require(
        name,
        samite_fabric::has_ucx(),
        "install libucx0: ci/packages.txt",
    ) {
        units(3).hosts(hosts).run(name, case);
    }
}

/// Slow enough that frames wait for it, and fast enough that no case takes long.
const LINK: Option<Link> = Some(Link {
    delay: Duration::from_micros(30),
    jitter: Duration::from_micros(20),
    rate: Some(1_000_000_000),
});

contract!(shm, |name, case| units(3).run(name, case));
// Real processes that behave as if they shared no memory.
contract!(messages, |name, case| units(3)
    .mask(Mask::MESSAGES_ONLY)
    .run(name, case));
// Real processes, two of which behave as if they were on one node and the third on another one.
contract!(two_nodes, |name, case| units(3)
    .mask(TWO_NODES)
    .run(name, case));
// Real processes with a network between them that takes its time.
contract!(link, |name, case| units(3)
    .mask(Mask::MESSAGES_ONLY)
    .config(|config| config.link = LINK)
    .run(name, case));
// The same between the two on one node and the third one.
contract!(link_two_nodes, |name, case| units(3)
    .mask(TWO_NODES)
    .config(|config| config.link = LINK)
    .run(name, case));
// Real processes on several nodes, each with an agent and memory of its own, over UCX.
contract!(ucx_two_hosts, |name, case| on_hosts(2, name, case));
contract!(ucx_three_hosts, |name, case| on_hosts(3, name, case));
contract!(sim, |name, case| simulate(name, 3, 0..4, case));
contract!(sim_one_node, |name, case| simulate_on(
    1,
    name,
    3,
    0..4,
    case
));
contract!(sim_two_nodes, |name, case| simulate_on(
    2,
    name,
    4,
    0..3,
    case
));
contract!(sim_link, |name, case| simulate_as(
    |seed| {
        let mut scenario = Scenario::new(seed, 3).unordered();
        scenario.config.link = LINK;
        scenario
    },
    name,
    0..4,
    case
));
contract!(sim_rma, |name, case| simulate_as(
    |seed| Scenario::new(seed, 3).with_rma(Rma::Bypasses).unordered(),
    name,
    0..4,
    case
));
contract!(sim_rma_with_progress, |name, case| simulate_as(
    |seed| Scenario::new(seed, 3).with_rma(Rma::NeedsProgress),
    name,
    0..4,
    case
));
contract!(sim_rma_two_nodes, |name, case| simulate_as(
    |seed| two_nodes(seed, 4),
    name,
    0..4,
    case
));
contract!(sim_rma_three_nodes, |name, case| simulate_as(
    |seed| three_nodes(seed, 5),
    name,
    0..2,
    case
));
