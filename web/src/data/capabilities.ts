// SPDX-License-Identifier: Apache-2.0

/**
 * What to ask the planner for, so that a what-if is comparable with the plan
 * that runs: what that plan was made for. Where the server does not say, the
 * preset of its executor (formats/convert/capabilities.h).
 */
import {create} from '@bufbuild/protobuf';
import {
  CapabilitiesSchema,
  type Capabilities,
  type Explanation,
} from '../gen/reprise/v1/planner_pb';
import {FreePolicy, type Plan} from '../gen/reprise/v1/plan_pb';

export function capabilitiesFor(plan: Plan, explanation: Explanation | undefined): Capabilities {
  if (explanation?.capabilities) return explanation.capabilities;
  const tape = plan.executor === 'tape';
  return create(CapabilitiesSchema, {
    executor: plan.executor,
    recomputeInBackwardOnly: tape,
    duplicateOutputs: ['tape', 'graph', 'tf-graph'].includes(plan.executor),
    seededOk: plan.executor === 'graph',
    freePolicy:
      plan.freePolicy === FreePolicy.UNSPECIFIED && tape ? FreePolicy.PROGRAM : plan.freePolicy,
  });
}
