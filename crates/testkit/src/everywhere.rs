//! One body as several tests: on units that share memory, on units that behave as if they shared
//! none or as if they were on two nodes, and on the simulated network. There, each unit is on its
//! own node, or some units share a node, nodes access each other's memory by RMA, with or without
//! bypass, and frames overtake each other.

/// Returns the full name of a test, as the test runner knows it, from its `module_path!()`.
pub fn full_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, inside)) => format!("{inside}::{test}"),
        None => test.to_owned(),
    }
}

/// `everywhere!(name, units, body)` creates the tests `name::mapped`, `name::messages`,
/// `name::two_nodes`, `name::simulated`, `name::simulated_two_nodes` and
/// `name::simulated_three_nodes` of a `body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync`. The
/// simulated ones run on a few seeds.
#[macro_export]
macro_rules! everywhere {
    ($name:ident, $units:expr, $body:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "bodies that need nothing from around them")]
            use super::*;

            #[test]
            fn mapped() {
                let name = $crate::full_name(module_path!(), "mapped");
                $crate::units($units).run(&name, $body);
            }

            #[test]
            fn messages() {
                let name = $crate::full_name(module_path!(), "messages");
                let units = $crate::units($units).mask($crate::MESSAGES_ONLY);
                units.run(&name, $body);
            }

            #[test]
            fn two_nodes() {
                let name = $crate::full_name(module_path!(), "two_nodes");
                $crate::units($units)
                    .mask($crate::TWO_NODES)
                    .run(&name, $body);
            }

            #[test]
            fn simulated() {
                let name = $crate::full_name(module_path!(), "simulated");
                $crate::simulate(&name, $units, 0..4, $body);
            }

            #[test]
            fn simulated_two_nodes() {
                let name = $crate::full_name(module_path!(), "simulated_two_nodes");
                let scenario = |seed| $crate::two_nodes(seed, $units);
                $crate::simulate_as(scenario, &name, 0..3, $body);
            }

            #[test]
            fn simulated_three_nodes() {
                let name = $crate::full_name(module_path!(), "simulated_three_nodes");
                let scenario = |seed| $crate::three_nodes(seed, $units);
                $crate::simulate_as(scenario, &name, 0..2, $body);
            }
        }
    };
}
