//! A kernel that travels: unit 0 sends code that doubles a number to every unit.
//!
//! ```sh
//! cargo build --release -p samite --example double
//! samite run -n 3 target/release/examples/double
//! ```

use samite::mobile::{Capsule, Mobile};

const DOUBLE: &str = r#"(module
    (import "samite" "memory" (memory 1))
    (import "samite" "reply" (func $reply (param i32 i32)))
    (func (export "double") (param $at i32) (param $len i32) (result i32)
        (i64.store (local.get $at) (i64.shl (i64.load (local.get $at)) (i64.const 1)))
        (call $reply (local.get $at) (i32.const 8))
        (i32.const 0)))"#;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabric = samite::init()?;
    let mobile = Mobile::new(&fabric)?; //   waits until all units of the job have joined
    let units = fabric.job()?;
    if fabric.identity().unit == 0 {
        let double = mobile.register(Capsule::from_wat(DOUBLE)?)?;
        for unit in 0..mobile.units() {
            let call = mobile.call(unit, &double, "double", &21_u64.to_le_bytes())?;
            let reply = call.wait()?;
            let number = u64::from_le_bytes(reply.as_slice().try_into()?);
            println!("unit {unit}: {number}");
        }
    }
    fabric.barrier(&units)?; //              a unit that waits runs the kernels that come
    Ok(())
}
