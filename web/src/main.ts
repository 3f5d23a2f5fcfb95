// SPDX-License-Identifier: Apache-2.0
import {mount} from 'svelte';
import 'uplot/dist/uPlot.min.css';
import './styles/tokens.css';
import './styles/base.css';
import './styles/shared.css';
import './styles/pictures.css';
import App from './App.svelte';

mount(App, {target: document.getElementById('app')!});
