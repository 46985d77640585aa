//! One body as three tests: on units that share memory, on units that behave as if they did not, and on
//! the simulated network.

/// The full name of a test, as the test runner knows it, from the `module_path!()` that it is in.
pub fn full_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, inside)) => format!("{inside}::{test}"),
        None => test.to_owned(),
    }
}

/// `everywhere!(name, units, body)` makes the tests `name::mapped`, `name::messages` and `name::simulated`
/// of a `body: impl Fn(&Fabric, &[PeerId]) -> Outcome + Sync`. The simulated one runs on four seeds.
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
            fn simulated() {
                let name = $crate::full_name(module_path!(), "simulated");
                $crate::simulate(&name, $units, 0..4, $body);
            }
        }
    };
}
