/* SPDX-License-Identifier: Apache-2.0
 *
 * The file sink: a file with what a session would have sent to a collector.
 *
 * A file is a sequence of entries, each 8-byte aligned:
 *
 *   reprise_msg_header   magic, type, layout, size of the body, request 0
 *   body                 `size` bytes
 *   zeros                up to the next multiple of 8
 *
 * The first entry is HELLO. The types that go up on the control socket have the
 * same bodies here (HELLO, DEFS, CAPS, BYE). What does not travel in a message
 * body there (ring records, content of memfds) has a type of its own here:
 *
 *   REPRISE_SINK_RECORDS   slots of 64 bytes, size / 64 of them, in ring order.
 *                          `sequence` is the position + 1: it rises by one from
 *                          record to record throughout the file.
 *   REPRISE_SINK_GRAPH     reprise_msg_graph, budget\0 capabilities\0, then
 *                          `bytes` bytes of proto3 JSON
 *   REPRISE_SINK_SNAPSHOT  proto3 JSON of reprise.v1.Moment
 *
 * DEFS precede the first record that uses an id, except for records pushed by
 * another thread at the same moment. Without a BYE the process was killed, and
 * the records in its ring that were not yet written are lost. An incomplete
 * entry at the end of the file is not an error: a reader stops there.
 *
 * An existing file is never overwritten: PATH.<pid> is used instead. So ranks
 * and forked children may share one REPRISE_SINK.
 */
#ifndef REPRISE_SINK_H_
#define REPRISE_SINK_H_

#include "reprise_wire.h"

enum {
  REPRISE_SINK_RECORDS = 64,
  REPRISE_SINK_GRAPH = 65,
  REPRISE_SINK_SNAPSHOT = 66
};

#endif /* REPRISE_SINK_H_ */
