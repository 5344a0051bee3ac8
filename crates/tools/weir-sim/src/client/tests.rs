//! Tests of clients in situations that random scenarios seldom reach.
//!
//! tests/planted_bugs tests whole scenarios.
//!
//! Invariant: each test asserts that it reached its situation, so that no test passes without
//! checking it.

use weir_base::Guid;
use weir_base::property::READ_ONLY;
use weir_dataset::{PropertyChange, PropertyTarget};
use weir_pool::{ImportOptions, PlantedBug};

use super::*;
use crate::scenario::{FaultPlan, Layout, Room, Scenario};
use crate::world::SimWorld;

/// Number of storms that the test tries. Some storms draw a volume that does not exist.
const STORMS: usize = 50;

// Regression: if a write of a storm failed, the volume remained marked as busy. The administrator
// and the tasks that clone ranges then waited for the storm's client forever.
#[test]
fn failed_storm_leaves_no_volume_busy() {
    let (layout, room) = (Layout::Single, Room::Ample);
    let (trouble, bug) = (FaultPlan::None, PlantedBug::None);
    let scenario = Scenario {
        seed: 1,
        layout,
        room,
        trouble,
        reshapes: false,
        objects: false,
        storm: true,
        bug,
    };
    let world = SimWorld::from_media(1, Scenario::new_pool(layout, room));
    let ran = world.run_until(async {
        let how = ImportOptions::new(Guid(1));
        let engine = Engine::open(world.devices(), how, &scenario.options(&world)).await;
        let engine = engine.expect("healthy disks");
        for n in 0..VOLUMES {
            let target = PropertyTarget::Volume(format!("v{n}"));
            let on = PropertyChange::set(READ_ONLY, true);
            engine.change_properties(&[target], &[on]).await.expect("it exists");
        }
        let expected = Rc::new(RefCell::new(scenario.new_expected_state()));
        let (rng, expected_too) = (Rng::new(1), Rc::clone(&expected));
        let mut client = Client { rng, engine, expected: expected_too, blocks_per_write_max: 8 };
        let mut failed = 0;
        for _ in 0..STORMS {
            failed += usize::from(client.storm().await.is_err());
            assert!(expected.borrow().volumes.iter().all(|book| book.busy == 0));
        }
        failed
    });
    assert!(ran.expect("nothing crashes here") > 0, "no storm met a read-only volume");
}
