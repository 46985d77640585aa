//! The tests of chunks between processes, in one program.

/// Creates the tests `mapped`, `messages` and `two_nodes` in a module: units that map the memory of
/// the server, none of them, or some. `run` gets the name of the test, and what the units must not
/// use.
macro_rules! everywhere {
    ($name:ident, $run:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                let name = samite_testkit::full_name(module_path!(), "mapped");
                $run(&name, samite_fabric::Mask::default());
            }

            #[test]
            fn messages() {
                let name = samite_testkit::full_name(module_path!(), "messages");
                $run(&name, samite_testkit::MESSAGES_ONLY);
            }

            #[test]
            fn two_nodes() {
                let name = samite_testkit::full_name(module_path!(), "two_nodes");
                $run(&name, samite_testkit::TWO_NODES);
            }
        }
    };
}

mod chunks;
mod content;
mod errors;
mod faults;
mod histories;
mod homes;
mod lessons;
mod litmus;
mod owners;
mod replicas;
mod servers;
mod sizes;
mod streams;
mod subscriptions;
mod together;
mod vectors;
mod waits;

use samite_dsm::service::STARTER;
use samite_fabric::{Fabric, Mask};
use samite_testkit::{Outcome, Units, units};

/// Units of a domain whose agent serves chunks.
fn served(count: u32, mask: Mask) -> Units {
    units(count).services(vec![STARTER]).mask(mask)
}

/// Returns what runs a body in that many units, whose numbers it gets.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        served(count, mask).run(name, body);
    }
}
