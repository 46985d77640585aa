//! Every transport is held to the same contract.

use samite_fabric::Mask;
use samite_testkit::{contract, simulate, units};

contract!(shm, |name, case| units(3).run(name, case));
// Real processes that behave as if they shared no memory.
contract!(messages, |name, case| units(3)
    .mask(Mask::MESSAGES_ONLY)
    .run(name, case));
contract!(sim, |name, case| simulate(name, 3, 0..4, case));
