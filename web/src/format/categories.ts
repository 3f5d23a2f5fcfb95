// SPDX-License-Identifier: Apache-2.0

/**
 * The categories: one order, which is the order of the legend and of
 * the stack from its bottom, and one colour each (styles/tokens.css). The
 * colours are those of Okabe and Ito, told apart with any colour vision.
 */
import {Category} from '../gen/reprise/v1/graph_pb';

export interface CategoryStyle {
  readonly category: Category;
  readonly name: string;
  /** The CSS variable that holds its colour. */
  readonly variable: string;
}

const UNKNOWN: CategoryStyle = {
  category: Category.UNKNOWN,
  name: 'unknown',
  variable: '--cat-unknown',
};

/** Static memory that the source does not tell apart, in one phrase everywhere. */
export const STATIC_TEXT = 'parameters, buffers and optimizer state';

export const CATEGORIES: readonly CategoryStyle[] = [
  {category: Category.STATIC, name: STATIC_TEXT, variable: '--cat-parameter'},
  {category: Category.BESIDE, name: 'beside the step', variable: '--cat-beside'},
  {category: Category.PARAMETER, name: 'parameters', variable: '--cat-parameter'},
  {category: Category.GRADIENT, name: 'gradients', variable: '--cat-gradient'},
  {category: Category.OPTIMIZER_STATE, name: 'optimizer state', variable: '--cat-optimizer'},
  {category: Category.ACTIVATION, name: 'activations', variable: '--cat-activation'},
  {category: Category.INPUT, name: 'inputs', variable: '--cat-input'},
  {category: Category.TEMPORARY, name: 'temporaries', variable: '--cat-temporary'},
  {category: Category.COMMUNICATION, name: 'communication', variable: '--cat-communication'},
  UNKNOWN,
];

/** What the server does not name is unknown. */
export function categoryStyle(category: Category): CategoryStyle {
  return CATEGORIES.find((style) => style.category === category) ?? UNKNOWN;
}
