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
/// simulated ones run on a few seeds. `everywhere!(name, [("solver", 3), ("analysis", 2)], body)`
/// does so for the units of several programs.
#[macro_export]
macro_rules! everywhere {
    ($name:ident, [$(($program:expr, $size:expr)),+ $(,)?], $body:expr) => {
        $crate::everywhere!(@ $name, &[$(($program, $size)),+], $body);
    };
    (@ $name:ident, $programs:expr, $body:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "bodies that need nothing from around them")]
            use super::*;

            const PROGRAMS_OF_TEST: &[(&str, u32)] = $programs;

            fn units_of_test() -> u32 {
                PROGRAMS_OF_TEST.iter().map(|(_, units)| units).sum()
            }

            #[test]
            fn mapped() {
                let name = $crate::full_name(module_path!(), "mapped");
                $crate::programs(PROGRAMS_OF_TEST).run(&name, $body);
            }

            #[test]
            fn messages() {
                let name = $crate::full_name(module_path!(), "messages");
                let units = $crate::programs(PROGRAMS_OF_TEST).mask($crate::MESSAGES_ONLY);
                units.run(&name, $body);
            }

            #[test]
            fn two_nodes() {
                let name = $crate::full_name(module_path!(), "two_nodes");
                $crate::programs(PROGRAMS_OF_TEST)
                    .mask($crate::TWO_NODES)
                    .run(&name, $body);
            }

            #[test]
            fn simulated() {
                let name = $crate::full_name(module_path!(), "simulated");
                let scenario = |seed| {
                    let scenario = $crate::own_nodes(seed, units_of_test());
                    scenario.of_programs(PROGRAMS_OF_TEST)
                };
                $crate::simulate_as(scenario, &name, 0..4, $body);
            }

            #[test]
            fn simulated_two_nodes() {
                let name = $crate::full_name(module_path!(), "simulated_two_nodes");
                let scenario = |seed| {
                    let scenario = $crate::two_nodes(seed, units_of_test());
                    scenario.of_programs(PROGRAMS_OF_TEST)
                };
                $crate::simulate_as(scenario, &name, 0..3, $body);
            }

            #[test]
            fn simulated_three_nodes() {
                let name = $crate::full_name(module_path!(), "simulated_three_nodes");
                let scenario = |seed| {
                    let scenario = $crate::three_nodes(seed, units_of_test());
                    scenario.of_programs(PROGRAMS_OF_TEST)
                };
                $crate::simulate_as(scenario, &name, 0..2, $body);
            }
        }
    };
    ($name:ident, $units:expr, $body:expr) => {
        $crate::everywhere!(@ $name, &[("unit", $units)], $body);
    };
}
