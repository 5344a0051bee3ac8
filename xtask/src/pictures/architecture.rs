//! The architecture as bands of boxes: clients on top, disks at the bottom.
//!
//! Not here: the picture of the crates' imports (tidy/picture.rs).
//!
//! Invariant: each crate that the picture names is a package of the workspace.

use super::svg::Svg;

/// A band of the picture, with its name and its boxes. A box has a share of the band's width, a
/// name and a line of text.
struct Band {
    name: &'static str,
    boxes: &'static [(u32, &'static str, &'static str)],
}

const BANDS: [Band; 6] = [
    Band {
        name: "clients",
        boxes: &[
            (1, "NBD", "qemu, libnbd, Linux"),
            (1, "iSCSI", "Linux, VMware, Windows"),
            (1, "HTTP and JSON", "weir, curl, your programs"),
        ],
    },
    Band {
        name: "protocol",
        boxes: &[
            (1, "weir-nbd", "sessions on io_uring threads"),
            (1, "weir-iscsi, weir-scsi", "targets, reservations, offloads"),
            (1, "weir-api", "one endpoint, roles and scopes"),
        ],
    },
    Band {
        name: "control",
        boxes: &[
            (1, "weir-export", "volumes as exports and LUNs"),
            (2, "weir-server", "pools, schedules, replication, history"),
        ],
    },
    Band {
        name: "engine",
        boxes: &[
            (2, "weir-dataset", "volumes, snapshots, clones, flush, txg commit"),
            (1, "weir-format", "on-disk structures, streams"),
        ],
    },
    Band {
        name: "engine",
        boxes: &[
            (2, "weir-pool", "vdevs, segments, trees, intent log, cleaner, scrub"),
            (1, "weir-cache", "verified blocks in RAM"),
        ],
    },
    Band {
        name: "disks",
        boxes: &[
            (1, "mirror", "two to four copies"),
            (1, "raidz1 to raidz3", "one to three parity strips"),
            (1, "weir-device", "block devices and files"),
        ],
    },
];

const WIDTH: u32 = 900;
const LABEL_WIDTH: u32 = 90;
const BAND_HEIGHT: u32 = 66;
const GAP: u32 = 18;
const MARGIN: u32 = 10;

/// Draws the picture.
pub(super) fn draw() -> String {
    let mut svg = Svg::new();
    let mut y = MARGIN;
    for (index, band) in BANDS.iter().enumerate() {
        if index > 0 {
            svg.arrow(LABEL_WIDTH + (WIDTH - LABEL_WIDTH) / 2, y - GAP + 2, y - 2);
        }
        svg.rectangle([MARGIN, y, WIDTH - 2 * MARGIN, BAND_HEIGHT], "band");
        svg.text([MARGIN + 10, y + BAND_HEIGHT / 2 + 5], "layer", band.name);
        let all: u32 = band.boxes.iter().map(|(share, ..)| share).sum();
        let unit = (WIDTH - LABEL_WIDTH - 2 * MARGIN) / all;
        let mut x = MARGIN + LABEL_WIDTH;
        for (share, name, about) in band.boxes {
            let width = unit * share;
            svg.rectangle([x, y + 7, width - 8, BAND_HEIGHT - 14], "box");
            svg.text([x + 12, y + 29], "name", name);
            svg.text([x + 12, y + 47], "small", about);
            x += width;
        }
        y += BAND_HEIGHT + GAP;
    }
    let title = "Weir: clients, protocols, control, engine and disks in one process";
    svg.finish([WIDTH, y - GAP + MARGIN], title)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use weir_command::command;

    use super::*;
    use crate::workspace;

    #[test]
    fn named_crates_exist() {
        let packages = workspace::packages().unwrap();
        let boxes = BANDS.iter().flat_map(|band| band.boxes);
        let names = boxes.flat_map(|(_, name, _)| name.split(", "));
        for name in names.filter(|name| name.starts_with("weir-")) {
            assert!(packages.iter().any(|package| package.name == name), "{name}");
        }
    }

    #[test]
    fn stored_picture_is_current() {
        let stored = fs::read_to_string(command::root().join("docs/pictures/architecture.svg"));
        assert!(stored.unwrap() == draw(), "run `cargo xtask pictures --architecture`");
    }
}
