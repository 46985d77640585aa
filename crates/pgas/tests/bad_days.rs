//! Bad input and bad days: what does not exist, what is too far, too large or nothing at all, deaths in the
//! middle, and beginning anew many times. (More deaths: `lock`, `collective`; conflicting arguments of
//! collectives: `collective`.)

use samite_fabric::Fabric;
use samite_pgas::{
    Aggregate, Error, GlobalPtr, Group, Pgas, Place, Signal, SignalOp, Strided, Unit, Update,
    Wanted,
};
use samite_testkit::{
    Failed, MESSAGES_ONLY, Outcome, Who, check, everywhere, pause, point, require, same, units,
};
