//! Settings of a filesystem that are fixed at its creation, for answers.
//!
//! Invariant: a volume has none of these settings.

use weir_api::types::NameCase;
use weir_dataset::Volume;
use weir_fs::Layout;

/// Returns the settings of a filesystem; `None` for a volume, or if a newer Weir created the
/// filesystem.
pub(crate) fn layout_of(volume: &Volume) -> Option<Layout> {
    Layout::decode(&volume.object_layer()?)
}

/// Returns the comparison of names in a filesystem.
pub(crate) fn name_case(layout: &Layout) -> NameCase {
    match layout.case {
        weir_fs::NameCase::Sensitive => NameCase::Sensitive,
        weir_fs::NameCase::Insensitive => NameCase::Insensitive,
    }
}

/// Returns the value of the property `case`; a volume has none.
pub(crate) fn case_of(volume: &Volume) -> &'static str {
    layout_of(volume).map_or("-", |layout| name_case(&layout).name())
}
